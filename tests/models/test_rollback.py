"""Rejected drafts on real caches: at the edges of a sliding window, far from the start, and at what price."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tiny import VOCAB as SAVED_VOCAB
from tiny import random_block

from augury.conformance.identity import examine, watched
from augury.conformance.toys import Half, oracle
from augury.drafters import make
from augury.drafters.drafter import Drafter, View
from augury.engine.engine import Engine
from augury.models.block import TorchForward
from augury.models.load import load_target
from augury.models.native import NativeForward, native_available
from augury.models.runner import Runner, capacity
from augury.models.target import Target, TargetInfo
from augury.sampling import Sampling
from augury.tree import DraftTree, Path

WINDOW, CONTEXT, VOCAB = 16, 120, 97
RNG = np.random.default_rng(3)
TEXT = RNG.integers(0, VOCAB, 60).tolist()


def block(native: bool = False, context: int = CONTEXT, **changes: Any) -> Runner:
    config, weights = random_block(**{"num_hidden_layers": 2, "max_position_embeddings": context} | changes)
    rows = capacity(context)
    forward = (
        NativeForward(config, weights, 2, rows, threads=1)
        if native
        else TorchForward(config, weights, 2, rows, dtype=torch.float32)
    )
    return Runner(forward, TargetInfo("tiny", "", "", "float32", VOCAB, context, 48, 2, 0, 0, True, False), 2)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads cost such small models more than their arithmetic."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


WINDOWED: dict[str, dict[str, Any]] = {
    "every layer": {"model_type": "mistral", "sliding_window": WINDOW},
    "every other layer": {"model_type": "gemma2", "sliding_window": WINDOW},
}
TARGETS = [*WINDOWED, "transformers", *(["native"] if native_available() is None else [])]


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest, made_model: Any) -> Target:
    if request.param == "native":
        return block(native=True, **WINDOWED["every layer"])
    if request.param != "transformers":
        return block(**WINDOWED[request.param])
    small = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    path = made_model("mistral", plain=True, vocab_size=SAVED_VOCAB, intermediate_size=80, sliding_window=WINDOW,
                      max_position_embeddings=CONTEXT, bos_token_id=256, eos_token_id=257, **small)  # fmt: skip
    return load_target(path, dtype="float32", runner="transformers", max_num_seqs=2).target


class WrongAt(Drafter):
    """Knows the whole text, but for the tokens at some absolute positions."""

    def __init__(self, text: Sequence[int], places: Sequence[int]) -> None:
        self.places = places
        self.text = [(t + 1) % VOCAB if i in places else t for i, t in enumerate(text)]

    def propose(self, view: View, limit: int) -> DraftTree:
        # A step's last token is the target's own: one more is proposed where it would stand at such a place.
        tokens = self.text[view.length : view.length + 5 + (view.length + 5 in self.places)]
        return DraftTree.chain(tokens, [0.5] * len(tokens))


def said(target: Target, prompt: Sequence[int], max_tokens: int, *drafters: Drafter) -> Any:
    with Engine(target, [(f"d{i}", d) for i, d in enumerate(drafters)]) as one:
        return one.generate(prompt, max_tokens=max_tokens)


@pytest.mark.parametrize("prompt", [TEXT[:3], TEXT[:40]], ids=["a long answer", "a long prompt"])
def test_a_rejection_at_the_edge_of_a_window_leaves_nothing_behind(target: Target, prompt: list[int]) -> None:
    count = 2 * WINDOW + 8
    plain = said(target, prompt, count)
    text = [*prompt, *plain.tokens]
    begin = 0 if len(prompt) < WINDOW else len(prompt)
    for edge in [begin + e for e in (WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW - 1, 2 * WINDOW)]:
        result = said(target, prompt, count, WrongAt(text, [edge]))
        assert result.tokens == plain.tokens
        refused = [s for s in result.record.steps if s.accepted < s.drafted]
        assert [s.position + s.accepted + 1 for s in refused] == [edge]
    result = said(target, prompt, count, WrongAt(text, range(0, len(text), 3)))
    assert result.tokens == plain.tokens


def test_the_window_matters_here() -> None:
    windowed, full = block(**WINDOWED["every layer"]), block()
    assert said(windowed, TEXT[:3], 40).tokens != said(full, TEXT[:3], 40).tokens


def test_a_prefix_that_the_window_has_left_is_as_good_as_new(target: Target) -> None:
    """The next turn shares a beginning that ends far behind, just behind, and inside the window."""
    answer = said(target, TEXT[:30], 30).tokens
    text = [*TEXT[:30], *answer]
    for keep in (5, len(text) - WINDOW - 1, len(text) - WINDOW, len(text) - 2):
        turn = [*text[:keep], (text[keep] + 1) % VOCAB, 5]
        cold = said(target, turn, 12)
        with Engine(target, [("half", Half(answer, 4, range(5), VOCAB))]) as one:
            assert one.generate(TEXT[:30], max_tokens=30).tokens == answer
            warm = one.generate(turn, max_tokens=12)
        assert warm.record.cached_tokens == keep
        assert warm.tokens == cold.tokens


def test_bits_are_equal_far_from_the_start() -> None:
    """Behind a prompt of more than 4,000, in layers with a window and in layers without."""
    native = native_available() is None
    far, count = block(native, 4800, model_type="gemma2", sliding_window=512), 512 if native else 96
    prompt = np.random.default_rng(4).integers(0, VOCAB, 700).tolist() * 6
    answer = said(far, prompt, count).tokens
    drafters = [("suffix", make("suffix")), ("ngram", make("ngram")), ("half", Half(answer, 4, range(5), VOCAB))]
    with watched(Engine(far, drafters)) as one:
        verdict, plain, drafted = examine(one, prompt, Sampling(), max_tokens=count)
    assert drafted.tokens == plain.tokens == answer
    assert verdict.kind == "identical bits" or not far.info.exact, verdict
    assert count // 5 < drafted.accepted < drafted.drafted


@pytest.mark.parametrize("length", [10, 2000])
def test_a_rollback_moves_no_row_but_those_of_the_path(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = block(context=2200, num_hidden_layers=1)
    forward, moved = runner.forward, []
    assert isinstance(forward, TorchForward)
    whole = forward.move
    monkeypatch.setattr(forward, "move", lambda slot, rows, to: (moved.append(len(rows)), whole(slot, rows, to)))
    slot = runner.open()
    runner.prefill(slot, np.resize(TEXT, length).astype(np.int32))
    place = forward.cache.data_ptr()
    tree = DraftTree.of([1, 2, 3, 4, 5, 6], [-1, -1, 0, 1, 3, 4], [0.5] * 6)
    for nodes, rows in [((), 0), ((0,), 0), ((0, 2), 2), ((1, 3, 4, 5), 4)] * 12:
        moved.clear()
        runner.verify([slot], [7], [tree])
        runner.commit([slot], [Path(nodes, 0)])
        assert sum(moved) == rows
        runner.truncate(slot, length)
        assert sum(moved) == rows
    assert forward.cache.data_ptr() == place


def test_an_oracle_fills_the_context_to_its_last_token(target: Target) -> None:
    plain = said(target, TEXT[:50], 500)
    assert plain.finish_reason == "length"
    for depth in (7, 64):
        result = said(target, TEXT[:50], 500, oracle(plain.tokens, depth, VOCAB))
        assert (result.tokens, result.finish_reason) == (plain.tokens, "length")
    assert len(plain.tokens) == target.info.context - 50
