"""What is written is what is read."""

import json

import pytest
from made import INFO, pair, together

from augury.bench.document import Run, document, measured, read
from augury.bench.report import machine, versions
from augury.errors import InputError


def runs() -> list[Run]:
    pairs = [pair(name, kind, turn, 10.0, 5.0) for turn in range(2) for name, kind in (("a", "qa"), ("b", "rag"))]
    several = [together(2, 0, turn, 3.0) for turn in range(2)]
    return [Run("suffix", 0.0, pairs, several), Run("suffix", 1.0, pairs[:2])]


def test_the_document_is_json_and_holds_every_answer():
    pairs = [pair("a", "qa", turn, 10.0, 5.0) for turn in range(2)]
    found = json.loads(json.dumps(document({"seed": 3}, INFO, [Run("suffix", 0.0, pairs)])))
    assert found["arguments"] == {"seed": 3}
    assert found["target"]["name"] == "toy"
    assert {"augury", "python", "numpy"} <= found["versions"].keys() == versions().keys()
    assert found["machine"] == machine()
    (run,) = found["runs"]
    assert run["summary"]["overall"]["speedup"] == pytest.approx(2.0)
    assert [p["drafted"]["tokens"] for p in run["pairs"]] == [[0, 1, 9, 9]] * 2
    assert (run["batches"], run["together"]) == ([], [])


def test_a_document_that_was_read_has_the_same_figures(tmp_path):
    written = json.loads(json.dumps(document({}, INFO, runs())))
    (tmp_path / "a.json").write_text(json.dumps(written))
    again = measured(read(tmp_path / "a.json"))
    assert json.loads(json.dumps(document({}, INFO, again))) == written
    for before, after in zip(runs(), again, strict=True):
        assert after.summary == before.summary
        assert after.batches == before.batches


@pytest.mark.parametrize("change", ["text", "list", "no runs", "no pairs", "bad figure", "of drafters", "bare"])
def test_what_is_no_document_is_refused(tmp_path, change):
    found = json.loads(json.dumps(document({}, INFO, runs())))
    if change == "no runs":
        found["runs"] = []
    elif change == "no pairs":
        found["runs"][0]["pairs"] = []
    elif change == "bad figure":
        found["runs"][0]["pairs"][0]["plain"]["figures"]["decode_ms"] = "x"
    elif change == "of drafters":
        found["drafters"] = []
    elif change == "bare":
        del found["machine"]
    (tmp_path / "a.json").write_text({"text": "hello", "list": "[1]"}.get(change, json.dumps(found)))
    with pytest.raises(InputError, match="not a file that `augury bench --json`"):
        read(tmp_path / "a.json")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        read(tmp_path / "a.json")
