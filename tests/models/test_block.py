"""Bits of the torch forward: a row is a function of the tokens at its positions, of nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny import random_block

from augury.models.attention import BLOCK, attend, layout
from augury.models.block import TorchForward
from augury.models.forward import Segment
from augury.models.linear import Linear, row_exact

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "odd": {"hidden_size": 40, "intermediate_size": 33, "head_dim": 10, "num_key_value_heads": 3},
    "mistral": {"model_type": "mistral", "sliding_window": 70},
    "gemma2": {"model_type": "gemma2", "sliding_window": 20, "attn_logit_softcapping": 3.0},
    "wide": {"hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 2, "head_dim": 64},
}
DTYPES = ["bfloat16", "float32"]
LENGTHS = [1, 5, 63, 64, 65, 130]
RNG = np.random.default_rng(1)


@pytest.fixture(scope="module", params=[(c, d) for c in CONFIGS for d in DTYPES], ids="-".join)
def forward(request: pytest.FixtureRequest) -> TorchForward:
    name, dtype = request.param
    config, weights = random_block(**CONFIGS[name])
    return TorchForward(config, weights, 3, 400, dtype=getattr(torch, dtype))


def chain(slot: int, length: int, tokens: Any) -> Segment:
    rows = np.arange(len(tokens), dtype=np.int32)
    return Segment(slot, length, np.asarray(tokens, np.int32), rows - 1, rows)


def tree(slot: int, length: int, tokens: list[int], parents: list[int]) -> Segment:
    depths = np.zeros(len(tokens), np.int32)
    for i, parent in enumerate(parents):
        depths[i] = depths[parent] + 1 if parent >= 0 else 0
    return Segment(slot, length, np.asarray(tokens, np.int32), np.asarray(parents, np.int32), depths)


def run(forward: TorchForward, *segments: Segment) -> Any:
    logits, _ = forward.run(segments, logits=True)
    return logits


def test_it_says_exact(forward: TorchForward) -> None:
    assert forward.exact


@pytest.mark.parametrize("length", LENGTHS)
def test_rows_alone_and_together(forward: TorchForward, length: int) -> None:
    text = RNG.integers(0, 97, length + 70)
    forward.run([chain(0, 0, text[:length])], logits=False)
    together = run(forward, chain(0, length, text[length:]))
    kept = forward.read(0, len(text))
    for i in range(70):
        alone = run(forward, chain(0, length + i, text[length + i : length + i + 1]))
        np.testing.assert_array_equal(alone[0], together[i])
    for a, b in zip(kept, forward.read(0, len(text)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("length", LENGTHS)
def test_every_node_of_a_tree_is_its_path(forward: TorchForward, length: int) -> None:
    text = RNG.integers(0, 97, length)
    forward.run([chain(0, 0, text)], logits=False)
    parents = [-1] + [int(RNG.integers(max(0, i - 5), i)) for i in range(1, 60)]
    segment = tree(0, length, RNG.integers(0, 97, 60).tolist(), parents)
    rows = run(forward, segment)
    for row in range(0, 60, 7):
        path = [row]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        # computed as one prompt, from nothing, in another slot
        whole = run(forward, chain(1, 0, [*text, *segment.tokens[path]]))
        np.testing.assert_array_equal(whole[-1], rows[row])


@pytest.mark.parametrize("length", LENGTHS)
def test_order_of_siblings(forward: TorchForward, length: int) -> None:
    text = RNG.integers(0, 97, length)
    forward.run([chain(0, 0, text)], logits=False)
    one = run(forward, tree(0, length, [1, 2, 3, 4, 5, 6], [-1, 0, 0, 1, 2, 3]))
    other = run(forward, tree(0, length, [1, 3, 5, 2, 4, 6], [-1, 0, 1, 0, 3, 4]))
    np.testing.assert_array_equal(one[[0, 2, 4, 1, 3, 5]], other)


def test_company_of_other_requests(forward: TorchForward) -> None:
    texts = [RNG.integers(0, 97, n) for n in (3, 100, 64)]
    for slot, text in enumerate(texts):
        forward.run([chain(slot, 0, text)], logits=False)
    trees = [tree(s, len(t), [7, 8, 9, 10], [-1, 0, 0, 2]) for s, t in enumerate(texts)]
    together = run(forward, *trees)
    for slot in range(3):
        np.testing.assert_array_equal(run(forward, trees[slot]), together[4 * slot : 4 * slot + 4])


def test_moved_rows_serve_as_if_written_there(forward: TorchForward) -> None:
    text = RNG.integers(0, 97, 61)
    forward.run([chain(0, 0, text)], logits=False)
    run(forward, tree(0, 61, [1, 2, 3, 4, 5, 6, 7], [-1, 0, 0, 2, 2, 4, 5]))
    forward.move(0, [61 + 2, 61 + 4, 61 + 5, 61 + 6], 62)
    after = run(forward, chain(0, 66, [9]))
    fresh = run(forward, chain(1, 0, [*text, 1, 3, 5, 6, 7, 9]))
    np.testing.assert_array_equal(after[0], fresh[-1])
    for a, b in zip(forward.read(0, 67), forward.read(1, 67), strict=True):
        np.testing.assert_array_equal(a, b)


def test_garbage_behind_the_committed_rows_does_not_matter(forward: TorchForward) -> None:
    text = RNG.integers(0, 97, 30)
    fresh = run(forward, chain(1, 0, [*text, 4]))[-1]
    forward.run([chain(0, 0, RNG.integers(0, 97, 200))], logits=False)
    forward.run([chain(0, 0, text)], logits=False)
    np.testing.assert_array_equal(run(forward, chain(0, 30, [4]))[0], fresh)


def test_another_token_gives_other_bits(forward: TorchForward) -> None:
    text = RNG.integers(0, 97, 20)
    one = run(forward, chain(0, 0, [*text, 4]))[-1]
    text[15] = (text[15] + 1) % 97
    assert not np.array_equal(one, run(forward, chain(0, 0, [*text, 4]))[-1])


def test_no_rows_are_logits_when_none_are_asked(forward: TorchForward) -> None:
    assert forward.run([chain(0, 0, [1])], logits=False) == (None, None)


@pytest.mark.parametrize("window", [0, 20, 64, 100])
@pytest.mark.parametrize(("length", "rows"), [(0, 1), (0, 90), (63, 2), (64, 5), (130, 40)])
def test_attention_is_softmax_attention(length: int, rows: int, window: int) -> None:
    made = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(2, 4 * BLOCK, 12, generator=made) for _ in range(2))
    q = torch.randn(rows, 6, 12, generator=made)
    plan = layout(chain(0, length, np.zeros(rows)), torch.device("cpu"))
    got = attend(q, keys, values, plan, 0.3, 0.0, window)
    k, v = (c[:, : length + rows].repeat_interleave(3, 0) for c in (keys, values))
    scores = torch.einsum("mhd,htd->hmt", q, k) * 0.3
    at, behind = torch.arange(length + rows), torch.arange(length, length + rows)[:, None]
    hidden = (at > behind) | (at <= behind - window if window else torch.tensor(False))
    wanted = torch.einsum("hmt,htd->mhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v).reshape(rows, -1)
    torch.testing.assert_close(got, wanted, atol=2e-6, rtol=1e-5)


def test_a_linear_that_depends_on_its_rows_is_caught() -> None:
    linear = Linear(torch.randn(32, 48), None, torch.float32, torch.device("cpu"))
    assert row_exact(linear)

    class Leaning(Linear):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return super().__call__(x) * (1 + 1e-6 * (len(x) == 3))

    leaning = Leaning(torch.randn(32, 48), None, torch.float32, torch.device("cpu"))
    assert not row_exact(leaning)


@pytest.mark.parametrize("function", [torch.exp, torch.tanh, torch.rsqrt], ids=lambda f: f.__name__)
def test_functions_of_the_block_do_not_know_where_a_number_stands(function: Any) -> None:
    """Torch's fused silu, sigmoid and gelu do: the tail of an array gets other bits than its body."""
    x = torch.linspace(0.01, 5, 70_001)
    whole = function(x)
    for start in (0, 1, 17):
        for size in [*range(1, 80), 33_000]:
            piece = x[start : start + size].clone()
            torch.testing.assert_close(function(piece), whole[start : start + size], atol=0, rtol=0)
