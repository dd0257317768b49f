"""The public face: names, cost of importing, layers, and no word that does not belong in a project."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import augury

ROOT = Path(__file__).resolve().parents[1]


def test_public_names_are_sorted_and_importable():
    assert augury.__all__ == sorted(augury.__all__)
    for name in augury.__all__:
        assert getattr(augury, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = augury.nonsense


def test_importing_costs_nothing():
    code = (
        "import sys, augury, augury.tree, augury.budget, augury.accept, augury.sampling, augury.engine.engine;"
        "import augury.drafters; heavy = {'torch', 'transformers', 'scipy'} & set(sys.modules);"
        "sys.exit(' '.join(heavy) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_one_loop():
    callers = [
        path.relative_to(ROOT / "src/augury").as_posix()
        for path in (ROOT / "src/augury").rglob("*.py")
        if re.search(r"\.verify\(", path.read_text())
    ]
    # The cost table and the forward benchmark time it, the watched and the replayed target hand it on, and a follower
    # is another model that a drafter asks; none of them generates.
    assert set(callers) <= {
        "engine/loop.py", "engine/costs.py", "bench/forward.py", "bench/peers.py", "bench/replayed.py",
        "drafters/follower.py", "conformance/identity.py", "conformance/cache.py", "conformance/wrong.py",
    }  # fmt: skip
    assert "engine/loop.py" in callers


def test_every_drafter_file_is_registered():
    from augury.drafters import DRAFTERS

    shared = {
        "__init__", "ahead", "drafter", "follower", "hints", "layers", "likely", "passages", "past", "phrases",
        "remembered", "retold", "riding", "shipped", "spine", "survival", "vocabulary", "votes",
    }  # fmt: skip
    files = {p.stem for p in (ROOT / "src/augury/drafters").glob("*.py")} - shared
    named = {spec.target.partition(":")[0].rpartition(".")[2] for spec in DRAFTERS.values()}
    assert files == named


def test_the_versions_agree():
    text = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{augury.__version__}"' in text
    assert f"## {augury.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_readmes_have_the_same_sections_and_figures():
    english, chinese = ((ROOT / n).read_text() for n in ("README.md", "README.zh-CN.md"))
    for pattern in (r"^#{1,3} ", r"^\|", r"^```"):
        counts = [len(re.findall(pattern, t, re.M)) for t in (english, chinese)]
        assert counts[0] == counts[1], pattern
    table = [re.findall(r"\d+\.\d+", "\n".join(re.findall(r"^\|.*$", t, re.M))) for t in (english, chinese)]
    assert table[0] == table[1]
