"""Real pairs on the embedded model: few and short, for what they show and not for their speed."""

import json

import pytest

from augury.bench import paired
from augury.bench.prompts import own, select
from augury.bench.report import summarise
from augury.engine.engine import Engine
from augury.sampling import Sampling

pytestmark = pytest.mark.real


def unmeasured(engine, acceptance="coupled"):
    """An engine on the same target that verifies every guess, so that no clock decides what is seen."""
    target, drafters = engine.parts.target, engine.parts.drafters
    return Engine(target, drafters, acceptance=acceptance, tokenizer=engine.tokenizer, template=engine.template)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_pairs_have_the_same_tokens_and_their_phases_fill_the_wall_time(engine, temperature):
    prompts = select(own(), ["rag", "qa"], 1)
    seen = []
    sampling = Sampling(temperature=temperature, seed=1)
    with unmeasured(engine) as every:
        pairs = paired.run(every, prompts, sampling, max_tokens=24, rounds=1, progress=seen.append)
    assert [p.prompt for p in pairs] == prompts
    assert seen == [p for p in prompts for _ in range(2)]
    for pair in pairs:
        assert pair.same is True
        assert pair.plain.figures.drafted == 0
        assert pair.plain.figures.steps == len(pair.plain.tokens)
        assert pair.drafted.figures.prompt_tokens == pair.plain.figures.prompt_tokens
    summary = summarise(pairs)
    assert (summary.answers, summary.mismatches) == (2, 0)
    assert 0.0 <= summary.untimed < 0.5
    if temperature == 0.0:
        assert summary.overall.accepted["suffix"] > 0


def test_a_rule_that_keeps_the_law_only_is_not_compared(engine):
    with unmeasured(engine, "rejection") as ratio:
        prompts = select(own(), ["qa"], 1)
        (drawn,) = paired.run(ratio, prompts, Sampling(temperature=1.0, seed=1), max_tokens=8, rounds=1)
        (greedy,) = paired.run(ratio, prompts, Sampling(), max_tokens=8, rounds=1)
    assert drawn.same is None
    assert greedy.same is True


def test_the_verb_prints_tables_and_writes_everything(tmp_path):
    from typer.testing import CliRunner

    from augury.cli import app

    out = tmp_path / "bench.json"
    arguments = ["bench", "--kinds", "rag", "--limit", "1", "--max-tokens", "12", "--rounds", "1", "--json", str(out)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "1 of 1 pairs have the same tokens" in done.output
    found = json.loads(out.read_text())
    assert found["arguments"]["kinds"] == "rag"
    assert found["runs"][0]["pairs"][0]["prompt"] == "rag-1"
