"""The compiled forward against plain torch, and its promise: a row's bits depend on the tokens before it alone."""

import dataclasses
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from augury.errors import InputError, ModelError
from augury.models import native
from augury.models.block import TorchForward
from augury.models.config import BlockConfig, Rope
from augury.models.forward import Segment
from augury.models.machine import Processor
from augury.models.native import NativeForward, native_available
from augury.tree import MAX_NODES, DraftTree, FloatArray, IntArray

pytestmark = pytest.mark.skipif(native_available() is not None, reason=f"native forward: {native_available()}")

CONTEXT = 400
CAPACITY = CONTEXT + MAX_NODES + 1


# ---------------------------------------------------------------------------------------------- small models


def rope(half: int, base: float, factor: float = 1.0, positions: int = CONTEXT) -> Rope:
    angles = np.arange(positions)[:, None] / base ** (np.arange(half) / half)
    return Rope((np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32))


LLAMA = BlockConfig(
    family="llama",
    vocab_size=101,
    hidden_size=72,
    intermediate_size=100,
    layers=2,
    heads=6,
    kv_heads=2,
    head_dim=32,
    context=CONTEXT,
    norm_eps=1e-5,
    activation="silu",
    tied=True,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
    post_norms=False,
    attn_scale=32**-0.5,
    attn_softcap=0.0,
    logit_softcap=0.0,
    embed_scale=1.0,
    windows=(0, 0),
    ropes=(0, 0),
    rope_tables=(rope(16, 1e4),),
)
CONFIGS = {
    "llama": LLAMA,
    "qwen": dataclasses.replace(
        LLAMA, tied=False, qkv_bias=True, head_dim=64, heads=3, kv_heads=3, rope_tables=(rope(32, 1e6),)
    ),
    "gemma": dataclasses.replace(
        LLAMA,
        layers=3,
        hidden_size=80,
        vocab_size=160,
        heads=4,
        kv_heads=1,
        head_dim=256,
        activation="gelu_tanh",
        qk_norm=True,
        post_norms=True,
        attn_scale=256**-0.5,
        attn_softcap=2.0,
        logit_softcap=8.0,
        embed_scale=80**0.5,
        windows=(24, 0, 5),
        ropes=(0, 1, 0),
        rope_tables=(rope(128, 1e4), rope(128, 1e6, 0.5)),
    ),
    "phi": dataclasses.replace(
        LLAMA,
        head_dim=80,
        heads=2,
        kv_heads=1,
        o_bias=True,
        mlp_bias=True,
        attn_scale=80**-0.5,
        rope_tables=(rope(16, 1e4, 1.2),),
    ),
    "many_heads": dataclasses.replace(
        LLAMA,
        heads=16,
        kv_heads=1,
        head_dim=128,
        attn_scale=0.1,
        ropes=(-1, 0),
        windows=(0, 40),
        rope_tables=(rope(64, 1e4),),
    ),
    "narrow": dataclasses.replace(
        LLAMA, heads=3, kv_heads=1, head_dim=16, attn_scale=0.25, rope_tables=(rope(8, 1e4),)
    ),
    "odd": dataclasses.replace(
        LLAMA, vocab_size=33, hidden_size=50, intermediate_size=17, head_dim=20, rope_tables=(rope(9, 1e4),)
    ),
}


def random_weights(c: BlockConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    d, f, n = c.hidden_size, c.intermediate_size, c.head_dim

    def draw(*shape: int, scale: float, mean: float = 0.0) -> torch.Tensor:
        return mean + scale * torch.randn(shape, generator=random)

    def linear(out: int, inputs: int) -> torch.Tensor:
        return draw(out, inputs, scale=1.5 * inputs**-0.5).bfloat16()

    w = {"embed": draw(c.vocab_size, d, scale=1.0).bfloat16(), "final_norm": draw(d, scale=0.3, mean=1.0)}
    if not c.tied:
        w["head"] = linear(c.vocab_size, d)
    for i in range(c.layers):
        qkv = (c.heads + 2 * c.kv_heads) * n
        layer = {
            "attn_norm": draw(d, scale=0.3, mean=1.0),
            "mlp_norm": draw(d, scale=0.3, mean=1.0),
            "qkv": linear(qkv, d),
            "o": linear(d, c.heads * n),
            "gate_up": linear(2 * f, d),
            "down": linear(d, f),
        }
        if c.qkv_bias:
            layer["qkv_bias"] = draw(qkv, scale=0.5)
        if c.o_bias:
            layer["o_bias"] = draw(d, scale=0.5)
        if c.mlp_bias:
            layer |= {"gate_up_bias": draw(2 * f, scale=0.5), "down_bias": draw(d, scale=0.5)}
        if c.qk_norm:
            layer |= {"q_norm": draw(n, scale=0.3, mean=2.0), "k_norm": draw(n, scale=0.3, mean=2.0)}
        if c.post_norms:
            layer |= {x: draw(d, scale=0.3, mean=1.0) for x in ("post_attn_norm", "post_mlp_norm")}
        w |= {f"layers.{i}.{name}": x for name, x in layer.items()}
    return w


# ------------------------------------------------------------------------------- the same arithmetic, written out


def bf16(x: torch.Tensor) -> torch.Tensor:
    return x.float().bfloat16().double()


Taken = Callable[[torch.Tensor, str], torch.Tensor]
"""An input [m, k] of a linear (its name) as the linear takes it."""


def reference(
    c: BlockConfig, w: dict[str, torch.Tensor], tokens: IntArray, taken: Taken = lambda x, _: bf16(x)
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and hidden states of a whole chain in float64, rounded to bfloat16 where the design rounds."""
    m, n = len(tokens), c.head_dim
    at = torch.arange(m)

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + c.norm_eps) * weight.double()

    def cap(x: torch.Tensor, limit: float) -> torch.Tensor:
        return limit * torch.tanh(x / limit) if limit else x

    def rotate(x: torch.Tensor, table: Rope) -> torch.Tensor:  # x [m, heads, n]
        half = table.cos.shape[1]
        cos, sin = (torch.from_numpy(t[:m]).double()[:, None] for t in (table.cos, table.sin))
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def linear(x: torch.Tensor, i: int, name: str) -> torch.Tensor:
        out = taken(x, name) @ w[f"layers.{i}.{name}"].double().T
        bias = w.get(f"layers.{i}.{name}_bias")
        return out if bias is None else out + bias.double()

    x = w["embed"][torch.from_numpy(tokens).long()].double() * c.embed_scale
    for i in range(c.layers):
        own = {k.split(".", 2)[2]: v for k, v in w.items() if k.startswith(f"layers.{i}.")}
        q, k, v = (
            linear(norm(x, own["attn_norm"]), i, "qkv").reshape(m, -1, n).split([c.heads, c.kv_heads, c.kv_heads], 1)
        )
        if c.qk_norm:
            q, k = norm(q, own["q_norm"]), norm(k, own["k_norm"])
        if c.ropes[i] >= 0:
            q, k = (rotate(y, c.rope_tables[c.ropes[i]]) for y in (q, k))
        k, v = (bf16(y).repeat_interleave(c.heads // c.kv_heads, 1) for y in (k, v))
        scores = cap(torch.einsum("qhd,khd->hqk", q, k) * c.attn_scale, c.attn_softcap)
        hidden_from = at[:, None] < at[None]
        if c.windows[i]:
            hidden_from |= at[:, None] - at[None] >= c.windows[i]
        mixed = torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden_from, -torch.inf).softmax(-1), v)
        y = linear(mixed.reshape(m, -1), i, "o")
        x = x + (norm(y, own["post_attn_norm"]) if c.post_norms else y)
        gate, up = linear(norm(x, own["mlp_norm"]), i, "gate_up").chunk(2, -1)
        act = torch.nn.functional.silu if c.activation == "silu" else torch.nn.GELU("tanh")
        y = linear(act(gate) * up, i, "down")
        x = x + (norm(y, own["post_mlp_norm"]) if c.post_norms else y)
    x = norm(x, w["final_norm"])
    logits = taken(x, "head") @ w["embed" if c.tied else "head"].double().T
    return cap(logits, c.logit_softcap), x


TOLERANCE = 0.005
"""Rounding to bfloat16 turns a difference of one ulp into one of 2^-9 here and there; hence not tighter."""


def error(found: FloatArray | torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference, in standard deviations of what is expected."""
    return float((torch.as_tensor(found) - expected).square().mean().sqrt() / expected.std())


# ------------------------------------------------------------------------------------------------------ running


def chain(slot: int, length: int, tokens: IntArray) -> Segment:
    n = len(tokens)
    return Segment(slot, length, tokens, np.arange(-1, n - 1, dtype=np.int32), np.arange(n, dtype=np.int32))


def tree_rows(slot: int, length: int, root: int, tree: DraftTree) -> Segment:
    return Segment(
        slot,
        length,
        np.concatenate([[root], tree.tokens]).astype(np.int32),
        np.concatenate([[-1], tree.parents + 1]).astype(np.int32),
        np.concatenate([[0], tree.depths]).astype(np.int32),
    )


def bits(x: FloatArray) -> bytes:
    return np.ascontiguousarray(x).tobytes()


def solo(forward: NativeForward, tokens: IntArray, slot: int = 0) -> tuple[list[bytes], list[bytes]]:
    """Bits of logits and hidden state after each token, every token in a forward of its own."""
    out: tuple[list[bytes], list[bytes]] = ([], [])
    for i in range(len(tokens)):
        logits, hidden = forward.run([chain(slot, i, tokens[i : i + 1])], True)
        assert logits is not None
        assert hidden is not None
        out[0].append(bits(logits))
        out[1].append(bits(hidden))
    return out


def cache_bits(forward: NativeForward, slot: int, length: int) -> list[bytes]:
    return [bits(x) for x in forward.read(slot, length)]


def some_tokens(c: BlockConfig, n: int, seed: int = 1) -> IntArray:
    return np.random.default_rng(seed).integers(0, c.vocab_size, n).astype(np.int32)


Model = tuple[BlockConfig, dict[str, torch.Tensor], NativeForward]

HERE = [lanes for lanes in native.LANES if native.native_available(lanes) is None]


@pytest.fixture(scope="module", params=[(name, lanes) for lanes in HERE for name in CONFIGS], ids="-".join)
def model(request: pytest.FixtureRequest) -> Model:
    name, lanes = request.param
    c = CONFIGS[name]
    w = random_weights(c)
    return c, w, NativeForward(c, w, slots=3, capacity=CAPACITY, threads=2, lanes=lanes)


def test_the_kernel_is_compiled_for_the_lanes_it_was_asked_for(model: Model, request: pytest.FixtureRequest) -> None:
    _, lanes = request.node.callspec.params["model"]
    assert model[2].name == f"native bf16 ({lanes})"


def test_lanes_that_the_cpu_lacks_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "processor", lambda: Processor("old", frozenset({"sse2"})))
    assert native.best_lanes() is None
    assert native._built.__wrapped__("AVX2") == "the CPU has no AVX2"
    assert native._library() == "the CPU has no AVX-512 or AVX2"


def test_agrees_with_plain_torch(model: Model) -> None:
    c, w, forward = model
    tokens = some_tokens(c, 150)
    logits, hidden = forward.run([chain(0, 0, tokens)], True)
    expected, states = reference(c, w, tokens)
    assert logits is not None
    assert hidden is not None
    assert error(logits, expected) < TOLERANCE
    assert error(hidden, states) < TOLERANCE


def test_agrees_with_the_torch_block(model: Model) -> None:
    """One arithmetic, but for the outputs of torch's linears, which are rounded to bfloat16 too: hence looser."""
    c, w, forward = model
    other = TorchForward(c, w, slots=1, capacity=CAPACITY)
    prompt, tree = some_tokens(c, 90), random_tree(np.random.default_rng(3), c, 20)
    for one in (forward, other):
        one.run([chain(0, 0, prompt)], False)
    found, hidden = forward.run([tree_rows(0, 90, 1, tree)], True)
    expected, states = other.run([tree_rows(0, 90, 1, tree)], True)
    assert found is not None
    assert hidden is not None
    assert error(found, torch.as_tensor(expected)) < 4 * TOLERANCE
    assert error(hidden, torch.as_tensor(states)) < 4 * TOLERANCE
    for mine, theirs in zip(forward.read(0, 90), other.read(0, 90), strict=True):
        assert error(mine, torch.as_tensor(theirs)) < 4 * TOLERANCE


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gemma", {"activation": "silu"}),
        ("gemma", {"attn_softcap": 0.0}),
        ("gemma", {"logit_softcap": 0.0}),
        ("gemma", {"embed_scale": 1.0}),
        ("gemma", {"windows": (0, 0, 5)}),
        ("gemma", {"windows": (24, 0, 6)}),
        ("gemma", {"ropes": (0, 0, 0)}),
        ("gemma", {"qk_norm": False}),
        ("gemma", {"post_norms": False}),
        ("gemma", {"norm_eps": 0.1}),
        ("qwen", {"qkv_bias": False}),
        ("qwen", {"tied": True}),
        ("phi", {"o_bias": False}),
        ("phi", {"mlp_bias": False}),
        ("phi", {"attn_scale": 0.2}),
        ("many_heads", {"ropes": (0, 0)}),
        ("many_heads", {"windows": (0, 0)}),
    ],
)
def test_every_switch_is_seen_by_the_comparison(name: str, change: dict[str, object]) -> None:
    """The reference with one switch turned must differ by far more than the tolerance, or that test is blind."""
    c = CONFIGS[name]
    w, tokens = random_weights(c), some_tokens(c, 150)
    turned = dataclasses.replace(c, **change)  # type: ignore[arg-type]
    there = {k: v for k, v in w.items() if not k.endswith("_bias") or getattr(turned, _switch(k))}
    right, _ = reference(c, w, tokens)
    wrong, _ = reference(turned, there, tokens)
    assert error(wrong, right) > 4 * TOLERANCE


def _switch(name: str) -> str:
    return {"qkv_bias": "qkv_bias", "o_bias": "o_bias"}.get(name.split(".")[-1], "mlp_bias")


def test_any_chunking_gives_the_same_bits(model: Model) -> None:
    c, _, forward = model
    tokens = some_tokens(c, 75)
    logits, hidden = solo(forward, tokens)
    cache = cache_bits(forward, 0, 75)
    assert len(set(logits)) > 60
    for cuts in ([75], [1, 64, 10], [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 10], [12, 13, 14, 36], [31, 33, 11]):
        at = 0
        for n in cuts:
            some, states = forward.run([chain(1, at, tokens[at : at + n])], True)
            assert some is not None
            assert states is not None
            assert [bits(x) for x in some] == logits[at : at + n], f"{n} rows at {at}"
            assert [bits(x) for x in states] == hidden[at : at + n], f"{n} rows at {at}"
            at += n
        assert cache_bits(forward, 1, 75) == cache


def test_a_prompt_chunk_without_logits_fills_the_same_cache(model: Model) -> None:
    c, _, forward = model
    tokens = some_tokens(c, 256)
    for at in range(0, 256, 64):
        forward.run([chain(0, at, tokens[at : at + 64])], True)
    assert forward.run([chain(1, 0, tokens)], False) == (None, None)
    assert cache_bits(forward, 0, 256) == cache_bits(forward, 1, 256)


def random_tree(rng: np.random.Generator, c: BlockConfig, nodes: int) -> DraftTree:
    parents = [int(rng.integers(max(-1, i - 6), i)) for i in range(nodes)]
    return DraftTree.of(rng.integers(0, c.vocab_size, nodes).tolist(), parents, np.full(nodes, 0.5))


@pytest.mark.parametrize(("seed", "prefix", "nodes"), [(0, 0, 5), (1, 37, 20), (2, 64, MAX_NODES), (3, 1, 40)])
def test_a_node_of_a_tree_has_the_bits_of_its_path(model: Model, seed: int, prefix: int, nodes: int) -> None:
    c, _, forward = model
    rng = np.random.default_rng(seed)
    prompt, root, tree = some_tokens(c, prefix, seed), 3, random_tree(rng, c, nodes)
    for slot in (0, 1) if prefix else ():
        forward.run([chain(slot, 0, prompt)], False)
    rows, states = forward.run([tree_rows(0, prefix, root, tree)], True)
    assert rows is not None
    assert states is not None
    found = [(bits(a), bits(b)) for a, b in zip(rows, states, strict=True)]
    for node in range(-1, nodes):
        path = np.array([root, *tree.tokens[tree.path(node)]], np.int32)
        plain, plain_states = forward.run([chain(1, prefix, path)], True)
        assert plain is not None
        assert plain_states is not None
        assert found[node + 1] == (bits(plain[-1]), bits(plain_states[-1])), f"node {node}"


def test_the_order_of_nodes_does_not_matter(model: Model) -> None:
    c, _, forward = model
    rng = np.random.default_rng(7)
    prompt, tree = some_tokens(c, 50), random_tree(rng, c, 30)
    forward.run([chain(0, 0, prompt)], False)
    rows, _ = forward.run([tree_rows(0, 50, 3, tree)], True)
    assert rows is not None
    before = [bits(x) for x in rows]
    order = sorted(range(30), key=lambda i: (tree.depths[i], rng.random()))
    place = {old: new for new, old in enumerate(order)} | {-1: -1}
    shuffled = DraftTree.of(tree.tokens[order], [place[int(tree.parents[i])] for i in order], tree.survival[order])
    assert order != list(range(30))
    rows, _ = forward.run([tree_rows(0, 50, 3, shuffled)], True)
    assert rows is not None
    assert [bits(rows[place[i] + 1]) for i in range(30)] == before[1:]


def test_several_requests_in_one_forward_get_their_solo_bits(model: Model) -> None:
    c, _, forward = model
    rng = np.random.default_rng(11)
    prompts = [some_tokens(c, n, seed=n) for n in (33, 1, 90)]
    trees = [random_tree(rng, c, n) for n in (9, 64, 0)]
    forward.run([chain(i, 0, p) for i, p in enumerate(prompts)], False)
    alone = []
    for i, (p, t) in enumerate(zip(prompts, trees, strict=True)):
        rows, _ = forward.run([tree_rows(i, len(p), 5, t)], True)
        assert rows is not None
        alone += [bits(x) for x in rows]
    segments = [tree_rows(i, len(p), 5, t) for i, (p, t) in enumerate(zip(prompts, trees, strict=True))]
    rows, _ = forward.run(segments, True)
    assert rows is not None
    assert [bits(x) for x in rows] == alone


def test_moved_rows_continue_as_if_computed_there(model: Model) -> None:
    c, _, forward = model
    rng = np.random.default_rng(5)
    prompt, tree = some_tokens(c, 61), random_tree(rng, c, 40)
    forward.run([chain(0, 0, prompt)], False)
    forward.run([tree_rows(0, 61, 2, tree)], True)
    path = tree.path(int(np.argmax(tree.depths)))
    rows = [61 + 1 + node for node in path]
    assert rows != list(range(62, 62 + len(path)))
    forward.move(0, rows, 62)
    kept = np.concatenate([prompt, [2], tree.tokens[path]]).astype(np.int32)
    forward.run([chain(1, 0, kept)], False)
    assert cache_bits(forward, 0, len(kept)) == cache_bits(forward, 1, len(kept))
    a, _ = forward.run([chain(0, len(kept), some_tokens(c, 3))], True)
    assert a is not None
    first = bits(a)
    b, _ = forward.run([chain(1, len(kept), some_tokens(c, 3))], True)
    assert b is not None
    assert first == bits(b)


def test_rows_of_rejected_tokens_leave_no_trace_even_when_not_finite(model: Model) -> None:
    """A stale row may hold anything: it must not be multiplied by zero and added."""
    c, w, _ = model
    forward = NativeForward(c, w, slots=1, capacity=CAPACITY, threads=1)
    prompt = some_tokens(c, 45)
    forward.run([chain(0, 0, prompt)], False)
    rows, _ = forward.run([chain(0, 45, prompt[:3])], True)
    assert rows is not None
    clean = bits(rows)
    at = np.arange(forward._k.shape[3] * 32).reshape(-1, 2, 16).transpose(0, 2, 1)  # [block, lane, half]
    forward._k.swapaxes(3, 4)[..., at >= 45] = 0x7FC0
    forward._v[:, :, :, :, 45:] = 0x7FC0
    rows, _ = forward.run([chain(0, 45, prompt[:3])], True)
    assert rows is not None
    assert bits(rows) == clean


@pytest.mark.skipif(not {"AVX-512", "AVX2"} <= {*HERE}, reason="needs AVX-512, which has AVX2 too")
@pytest.mark.parametrize("name", CONFIGS)
def test_both_kinds_of_float_registers_give_the_same_bits(name: str) -> None:
    c = CONFIGS[name]
    w, tree = random_weights(c), random_tree(np.random.default_rng(0), c, 25)
    found = []
    for lanes in ("AVX-512", "AVX2"):
        forward = NativeForward(c, w, slots=1, capacity=CAPACITY, threads=2, lanes=lanes)
        forward.run([chain(0, 0, some_tokens(c, 200))], False)
        logits, _ = forward.run([tree_rows(0, 200, 1, tree)], True)
        assert logits is not None
        found.append(bits(logits))
    assert found[0] == found[1]


@pytest.mark.parametrize("threads", [1, 3, 7])
def test_threads_do_not_change_bits(model: Model, threads: int, request: pytest.FixtureRequest) -> None:
    c, w, forward = model
    _, lanes = request.node.callspec.params["model"]
    other = NativeForward(c, w, slots=3, capacity=CAPACITY, threads=threads, lanes=lanes)
    tree = random_tree(np.random.default_rng(0), c, 25)
    for one in (forward, other):
        one.run([chain(0, 0, some_tokens(c, 200))], False)
    a, _ = forward.run([tree_rows(0, 200, 1, tree)], True)
    b, _ = other.run([tree_rows(0, 200, 1, tree)], True)
    assert a is not None
    assert b is not None
    assert bits(a) == bits(b)


@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_companions_give_the_same_bits(model: Model, data: st.DataObject) -> None:
    """A fixed chain of rows beside any number of others, at any place in the forward."""
    c, _, forward = model
    prompt, mine = some_tokens(c, 40), some_tokens(c, 4, seed=9)
    forward.run([chain(0, 0, prompt)], False)
    rows, _ = forward.run([chain(0, 40, mine)], True)
    assert rows is not None
    alone = bits(rows)
    before, after = data.draw(st.integers(0, 70)), data.draw(st.integers(0, 70))
    segments = [chain(0, 40, mine)]
    if before:
        segments.insert(0, chain(1, 0, some_tokens(c, before)))
    if after:
        segments.append(chain(2, 0, some_tokens(c, after)))
    rows, _ = forward.run(segments, True)
    assert rows is not None
    assert bits(rows[before : before + 4]) == alone


def test_long_contexts_are_exact_and_near_the_reference() -> None:
    """Thousands of positions: score buffers and chunk starts far from zero."""
    context = 3000
    c = dataclasses.replace(LLAMA, context=context, windows=(0, 700), rope_tables=(rope(16, 1e4, positions=context),))
    w, tokens = random_weights(c), some_tokens(c, 2500)
    forward = NativeForward(c, w, slots=2, capacity=context + MAX_NODES + 1)
    for at in range(0, 2400, 200):
        forward.run([chain(0, at, tokens[at : at + 200])], False)
    logits, _ = forward.run([chain(0, 2400, tokens[2400:])], True)
    assert logits is not None
    together = [bits(x) for x in logits]
    expected, _ = reference(c, w, tokens)
    assert error(logits, expected[2400:]) < TOLERANCE
    for i in range(2400, 2500, 9):
        one, _ = forward.run([chain(0, i, tokens[i : i + 1])], True)
        assert one is not None
        assert bits(one[0]) == together[i - 2400]


# ------------------------------------------------------------------------------------------- errors and building


@pytest.mark.parametrize(
    ("segments", "says"),
    [
        ([], "at least one row"),
        ([chain(0, 0, some_tokens(LLAMA, 257))], "at most 256 rows"),
        ([chain(5, 0, some_tokens(LLAMA, 1))], "slot 5"),
        ([chain(0, 0, some_tokens(LLAMA, 2)), chain(0, 0, some_tokens(LLAMA, 2))], "twice"),
        ([chain(0, 0, np.array([101], np.int32))], "0 to 100"),
        ([chain(0, 0, np.array([-1], np.int32))], "0 to 100"),
        ([chain(0, CAPACITY - 1, some_tokens(LLAMA, 2))], "capacity"),
        ([chain(0, -1, some_tokens(LLAMA, 2))], "capacity"),
        ([chain(0, CONTEXT - 1, some_tokens(LLAMA, 2))], "context of 400"),
        ([Segment(0, 0, *(np.array(x, np.int32) for x in ([1, 2], [-1, 1], [0, 1])))], "not made of trees"),
        (
            [Segment(0, 0, *(np.array(x, np.int32) for x in ([1, 2], [-1, -1], [0, 1])))],
            "or 0 without one",
        ),
        ([Segment(0, 0, *(np.array(x, np.int32) for x in ([1, 2], [-1, 0], [0, 2])))], "one more"),
        ([Segment(0, 0, *(np.array(x, np.int32) for x in ([1, 2], [-1], [0, 1])))], "one parent"),
    ],
)
def test_bad_rows_are_refused_before_the_call(segments: list[Segment], says: str) -> None:
    forward = NativeForward(LLAMA, random_weights(LLAMA), slots=2, capacity=CAPACITY, threads=1)
    with pytest.raises(InputError, match=says):
        forward.run(segments, True)


@pytest.mark.parametrize(
    ("slot", "rows", "to"), [(3, [4], 2), (0, [4, 3], 2), (0, [4], 5), (0, [CAPACITY], 5), (0, [1], -1)]
)
def test_bad_moves_are_refused(slot: int, rows: list[int], to: int) -> None:
    forward = NativeForward(LLAMA, random_weights(LLAMA), slots=2, capacity=CAPACITY, threads=1)
    with pytest.raises(InputError):
        forward.move(slot, rows, to)


def test_a_missing_or_misshapen_weight_is_named() -> None:
    w = random_weights(LLAMA)
    with pytest.raises(ModelError, match=r"layers\.1\.down.*expected \[72, 100\]"):
        NativeForward(LLAMA, w | {"layers.1.down": w["layers.1.down"].T}, slots=1, capacity=CAPACITY)
    del w["layers.0.o"]
    with pytest.raises(ModelError, match=r"layers\.0\.o"):
        NativeForward(LLAMA, w, slots=1, capacity=CAPACITY)


def run_python(code: str, **env: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | env, capture_output=True, text=True, check=True, timeout=120
    ).stdout.strip()


ASK = "from augury.models.native import native_available as a; print(a())"


def test_it_can_be_switched_off_and_says_so() -> None:
    assert "AUGURY_NATIVE=0" in run_python(ASK, AUGURY_NATIVE="0")
    assert "must be 0 or one of: AVX-512 bf16, AVX-512, AVX2" in run_python(ASK, AUGURY_NATIVE="SSE")


@pytest.mark.parametrize("lanes", HERE)
def test_the_environment_names_the_registers(lanes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUGURY_NATIVE", lanes)
    assert NativeForward(LLAMA, random_weights(LLAMA), 1, CAPACITY).name == f"native bf16 ({lanes})"


def test_no_compiler_is_a_reason_not_a_crash(tmp_path: os.PathLike[str]) -> None:
    assert "no working C compiler" in run_python(ASK, CC="no-such-compiler", XDG_CACHE_HOME=str(tmp_path))


@pytest.mark.slow
def test_it_builds_into_a_private_folder_and_does_not_trust_a_shared_one(tmp_path: os.PathLike[str]) -> None:
    folder = os.path.join(tmp_path, "augury")
    assert run_python(ASK, XDG_CACHE_HOME=str(tmp_path)) == "None"
    (built,) = os.listdir(folder)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    os.chmod(folder, 0o777)
    with open(os.path.join(folder, built), "wb") as planted:
        planted.write(b"not a library: loading it would fail")
    assert run_python(ASK, XDG_CACHE_HOME=str(tmp_path)) == "None"


def test_a_forked_child_starts_its_own_threads() -> None:
    code = f"""
import os, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_native import *
f = NativeForward(LLAMA, random_weights(LLAMA), slots=1, capacity=CAPACITY, threads=2)
before = bits(f.run([chain(0, 0, some_tokens(LLAMA, 20))], True)[0])
if os.fork() == 0:
    os._exit(0 if bits(f.run([chain(0, 0, some_tokens(LLAMA, 20))], True)[0]) == before else 1)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert run_python(code) == "0"


def test_threads_respect_what_the_process_may_use() -> None:
    assert 1 <= native.default_threads() <= len(os.sched_getaffinity(0))


# ---------------------------------------------------------------------------------------------- the short forward


@pytest.fixture(params=HERE)
def lanes(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def in_fewer_bits(weight: torch.Tensor, bits: int, depth: int) -> torch.Tensor:
    """What is left of f[n, k] weights in groups of 32 inputs: so many equal steps, each a whole number of the output's
    unit, from a place that is kept in parts of one."""
    padded = torch.nn.functional.pad(weight.float(), (0, depth - weight.shape[1]))
    groups, steps, parts = padded.split(32, 1), 2**bits - 1, {4: 16, 8: 1}[bits]
    least = torch.stack([group.amin(1).clamp(max=0) for group in groups], 1)
    scale = torch.stack([(group.amax(1).clamp(min=0) - group.amin(1).clamp(max=0)) / steps for group in groups], 1)
    unit = scale.amax(1, keepdim=True) / 255
    zero = (-least / scale * parts).nan_to_num().round().clamp(max=255) / parts
    scale = unit * (scale / unit).nan_to_num().round().clamp(max=255)
    out = [
        s[:, None] * ((group / s[:, None] + z[:, None]).nan_to_num(0, 0, 0).round().clamp(0, steps) - z[:, None])
        for group, s, z in zip(groups, scale.unbind(1), zero.unbind(1), strict=True)
    ]
    return torch.cat(out, 1)[:, : weight.shape[1]]


def in_bytes(x: torch.Tensor, most: int) -> torch.Tensor:
    """What is left of f[m, k] inputs in groups of 32: whole numbers up to ``most`` and a step of each group's own."""
    out = []
    for group in bf16(x).float().split(32, 1):  # in floats, as the kernel does: what lies half-way is rounded alike
        step = group.abs().amax(1, keepdim=True) / most
        out.append((step * (group * (1.0 / step)).nan_to_num().round()).double())
    return torch.cat(out, 1)


def taken_in_bytes(c: BlockConfig, most: int) -> Taken:
    """Inputs as the kernel for fewer bits takes them; heads are padded to 16 dimensions."""

    def taken(x: torch.Tensor, name: str) -> torch.Tensor:
        if name != "o":
            return in_bytes(x, most)
        heads = torch.nn.functional.pad(x.reshape(len(x), c.heads, c.head_dim), (0, -c.head_dim % 16))
        return in_bytes(heads.flatten(1), most).reshape(heads.shape)[..., : c.head_dim].flatten(1)

    return taken


def most_of_bytes(bits: int, lanes: str) -> int:
    """Two products of bytes must fit 16 bits where the processor does not add four at once."""
    flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    return 127 if bits == 4 or ("avx_vnni" if lanes == "AVX2" else "avx512_vnni") in flags else 63


def all_in_fewer_bits(c: BlockConfig, w: dict[str, torch.Tensor], bits: int) -> dict[str, torch.Tensor]:
    """The linears as the kernel keeps them. Heads are padded to 16 dimensions."""
    up = lambda n, to: -(-n // to) * to  # noqa: E731
    width = up(c.hidden_size, 32)
    out = dict(w) | {"head": in_fewer_bits(w["embed" if c.tied else "head"], bits, width)}
    for name, weight in w.items():
        kind = name.rpartition(".")[2]
        if kind in ("qkv", "gate_up"):
            out[name] = in_fewer_bits(weight, bits, width)
        elif kind == "down":
            out[name] = in_fewer_bits(weight, bits, up(c.intermediate_size, 16))
        elif kind == "o":
            by_head = weight.reshape(c.hidden_size, c.heads, c.head_dim)
            padded = torch.nn.functional.pad(by_head, (0, up(c.head_dim, 16) - c.head_dim)).reshape(c.hidden_size, -1)
            small = in_fewer_bits(padded, bits, padded.shape[1]).reshape(c.hidden_size, c.heads, -1)
            out[name] = small[:, :, : c.head_dim].reshape(c.hidden_size, -1)
    return out


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_fewer_bits_are_those_of_the_nearest_weights(
    name: str, bits: int, threads: int, lanes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_NEAR", 2.5)
    c = CONFIGS[name]
    if c.logit_softcap:  # one that can be undone below
        c = dataclasses.replace(c, logit_softcap=100.0)
    w = random_weights(c)
    forward = NativeForward(c, w, 1, CAPACITY, threads=threads, lanes=lanes)
    short = forward.shorten(bits, range(c.layers))
    tokens = np.random.default_rng(1).integers(0, c.vocab_size, 40).astype(np.int32)
    found = np.concatenate([short([chain(0, i, tokens[i : i + 1])]).copy() for i in range(len(tokens))])
    small = all_in_fewer_bits(c, w, bits)
    taken = taken_in_bytes(c, most_of_bytes(bits, lanes))
    expected, hidden = reference(dataclasses.replace(c, tied=False), small, tokens, taken)
    exact = bf16(hidden) @ w["embed" if c.tied else "head"].double().T
    if c.logit_softcap:
        exact = c.logit_softcap * torch.tanh(exact / c.logit_softcap)
    raw = c.logit_softcap * np.arctanh(found / c.logit_softcap) if c.logit_softcap else found
    below = torch.from_numpy(raw.max(1, keepdims=True) - raw)
    near, far = below < 1.0, below > 4.0
    assert bool(near.any())
    assert bool(far.any())
    for some, right in ((near, exact), (far, expected)):  # those that nearly tie vary little among themselves
        assert error(np.where(some, found, right), right) < 5 * TOLERANCE * float(some.double().mean().sqrt())
    whole, _ = reference(c, w, tokens)
    assert error(found, whole) > (4 if bits == 4 else 0.2) * TOLERANCE  # and they are fewer


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_rows_in_fewer_bits_are_what_they_are_alone(name: str, bits: int, threads: int, lanes: str) -> None:
    """Of one slot and of several, in groups of every size that the kernel has."""
    c = CONFIGS[name]
    forward = NativeForward(c, random_weights(c), 3, CAPACITY, threads=threads, lanes=lanes)
    short = forward.shorten(bits, range(c.layers))
    tokens = np.random.default_rng(4).integers(0, c.vocab_size, (3, 5)).astype(np.int32)
    alone = [[short([chain(slot, i, tokens[slot, i : i + 1])])[0].copy() for i in range(5)] for slot in range(3)]
    for slots in ([0], [0, 1], [2, 0, 1]):
        for size in range(1, 6):
            found = short([chain(slot, 0, tokens[slot, :size]) for slot in slots])
            expected = [row for slot in slots for row in alone[slot][:size]]
            assert np.array_equal(found, np.stack(expected)), (slots, size)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_linear_in_fewer_bits_is_whole_number_arithmetic(
    name: str, bits: int, lanes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With layers that add nothing the head is left, whose input is known: no other rounding comes as near."""
    monkeypatch.setattr(native, "_NEAR", -1.0)  # nothing is computed anew
    c = dataclasses.replace(CONFIGS[name], logit_softcap=0.0)
    w = random_weights(c)
    for key, weight in w.items():
        if key.endswith((".o", ".down", "o_bias", "down_bias")):
            weight.zero_()
    forward = NativeForward(c, w, 1, CAPACITY, lanes=lanes)
    found = torch.from_numpy(forward.shorten(bits, range(c.layers))([chain(0, 0, np.array([7], np.int32))]).copy())
    hidden = bf16(torch.from_numpy(forward._hidden[:1, : c.hidden_size].copy()))
    small = all_in_fewer_bits(c, w, bits)["head"].double()
    whole = w["embed" if c.tied else "head"].double()
    least = torch.cat([group.amin(1, keepdim=True).expand_as(group) for group in whole.split(32, 1)], 1)
    bytes_ = in_bytes(hidden, most_of_bytes(bits, lanes))
    assert error(found, bytes_ @ small.T) < 1e-5
    assert error(found, hidden @ small.T) > 1e-3  # no rounding
    assert error(found, bytes_ @ (small - least).T + hidden @ least.T) > 1e-3  # of one term alone


@pytest.mark.parametrize("most", [1, 7, 512])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_greatest_logits_are_those_of_the_whole_head(
    name: str, most: int, lanes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many at most, whichever threads find them; all others stay as they were."""
    monkeypatch.setattr(native, "_NEAR", 4.0)
    monkeypatch.setattr(native, "_NEAREST", most)
    c = dataclasses.replace(CONFIGS[name], logit_softcap=0.0)
    w = random_weights(c)
    rows = chain(0, 0, np.array([7, 3, 5, 9, 1, 2], np.int32))
    found = []
    for threads in (1, 2, 3):
        forward = NativeForward(c, w, 1, CAPACITY, threads=threads, lanes=lanes)
        found.append(forward.shorten(4, range(c.layers))([rows]).copy())
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    hidden = bf16(torch.from_numpy(forward._hidden[:6, : c.hidden_size].copy()))
    exact = (hidden @ w["embed" if c.tied else "head"].double().T).numpy()
    monkeypatch.setattr(native, "_NEAR", -1.0)  # nothing is computed anew
    before = forward.shorten(4, range(c.layers))([rows])
    for new, old, whole in zip(found[0], before, exact, strict=True):
        anew = new != old
        near = old >= old.max() - 4.0
        assert 1 <= anew.sum() <= most
        assert near[anew].all()
        assert np.abs(new - whole)[anew].max() < 1e-4 * whole.std()
        if near.sum() <= most:
            assert anew.sum() == near.sum()
        else:  # whole bins below the greatest
            assert old[anew].min() >= old[near & ~anew].max() - 4.0 / 64


@pytest.mark.parametrize("name", CONFIGS)
def test_all_layers_in_all_bits_are_the_forward_itself(name: str, lanes: str) -> None:
    c = CONFIGS[name]
    forward = NativeForward(c, random_weights(c), 1, CAPACITY, lanes=lanes)
    tokens = np.random.default_rng(2).integers(0, c.vocab_size, 9).astype(np.int32)
    expected, _ = forward.run([chain(0, 0, tokens)], True)
    assert expected is not None
    expected = expected.copy()
    assert np.array_equal(forward.shorten(16, range(c.layers))([chain(0, 0, tokens)]), expected)
    again, _ = forward.run([chain(0, 0, tokens)], True)
    assert again is not None
    assert np.array_equal(again, expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_skipped_layers_are_as_if_they_were_not_there(name: str, lanes: str) -> None:
    c = CONFIGS[name]
    w = random_weights(c)
    kept = [i for i in range(c.layers) if i != 1]
    fewer = dataclasses.replace(
        c, layers=len(kept), windows=tuple(c.windows[i] for i in kept), ropes=tuple(c.ropes[i] for i in kept)
    )
    place = {f"layers.{i}.": f"layers.{kept.index(i)}." for i in kept}
    left = {k: v for k, v in w.items() if not k.startswith("layers.")}
    for name_, weight in w.items():
        for old, new in place.items():
            if name_.startswith(old):
                left[new + name_.removeprefix(old)] = weight
    tokens = np.random.default_rng(3).integers(0, c.vocab_size, 7).astype(np.int32)
    found = NativeForward(c, w, 1, CAPACITY, lanes=lanes).shorten(16, kept)([chain(0, 0, tokens)])
    expected, _ = NativeForward(fewer, left, 1, CAPACITY, lanes=lanes).run([chain(0, 0, tokens)], True)
    assert expected is not None
    assert np.array_equal(found, expected)


def test_a_short_forward_that_was_refused_leaves_the_whole_one_as_it_was(lanes: str) -> None:
    c = LLAMA
    forward = NativeForward(c, random_weights(c), 1, CAPACITY, lanes=lanes)
    tokens = np.arange(5, dtype=np.int32)
    expected = forward.run([chain(0, 0, tokens)], True)[0].copy()
    short = forward.shorten(4, [0])
    with pytest.raises(InputError):
        short([chain(0, 0, np.array([c.vocab_size], np.int32))])
    assert np.array_equal(forward.run([chain(0, 0, tokens)], True)[0], expected)
