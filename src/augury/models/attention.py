"""Tree attention whose order of summation depends on absolute positions only.

The keys of a row are cut into blocks of ``BLOCK`` absolute positions. Scores and weighted values of a block
come from matrix products of one fixed shape ([TILE, head_dim] x [head_dim, BLOCK] and [TILE, BLOCK] x
[BLOCK, head_dim]), whatever the number of rows; blocks are then added one after another. A position that a
row does not see has weight exactly zero and adds exact zeros. So a row's bits do not change with the other
rows, the length of the cache behind it, or the cache rows in which its ancestors lie.

Committed blocks, and all blocks of a chain, are shared by the rows: cache row = position. In a tree each
row's path is gathered into position order first; only the blocks behind the last committed full one are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from augury.models.forward import Segment

BLOCK = 64
TILE = 16


@dataclass(frozen=True)
class Layout:
    """Where the keys of a segment's rows lie; the same for all layers.

    Attributes:
        start: absolute position of row 0.
        positions: i64[m], absolute position of each row.
        shared: number of leading blocks in which cache row = position for every row.
        gather: i64[m, t * BLOCK], cache row of each position behind the shared blocks, or None if t = 0.
            Positions behind a row's own point at any row; they are masked.
    """

    start: int
    positions: Tensor
    shared: int
    gather: Tensor | None


def layout(segment: Segment, device: torch.device) -> Layout:
    """Plan the blocks of a segment."""
    rows, length = len(segment.tokens), segment.length
    positions = torch.from_numpy(segment.depths).long() + length
    parents = segment.parents.tolist()
    if parents == list(range(-1, rows - 1)):
        return Layout(length, positions.to(device), -(-(length + rows) // BLOCK), None)
    shared = length // BLOCK
    start = shared * BLOCK  # first position that is gathered
    last = int(segment.depths.max()) + length
    gather = torch.arange(start, start + -(-(last + 1 - start) // BLOCK) * BLOCK).repeat(rows, 1)
    gather[:, length - start :] = length
    for row in range(rows):
        at = row
        while at >= 0:
            gather[row, length + int(segment.depths[at]) - start] = length + at
            at = parents[at]
    return Layout(length, positions.to(device), shared, gather.to(device))


def attend(q: Tensor, keys: Tensor, values: Tensor, plan: Layout, scale: float, softcap: float, window: int) -> Tensor:
    """Attention of one segment in one layer.

    Args:
        q: f32[m, heads, head_dim], rotated.
        keys: [kv_heads, capacity, head_dim] of one slot, this segment's rows already written; rows behind
            them hold finite numbers.
        values: of the same shape.
        plan: the segment's layout.
        scale: factor on q k.
        softcap: c of c tanh(s / c), or 0.
        window: positions a row sees counting itself, or 0 for all.

    Returns:
        f32[m, heads * head_dim].
    """
    m, heads, width = q.shape
    kv_heads = len(keys)
    group = heads // kv_heads
    per_head = q.view(m, kv_heads, group, width).transpose(0, 1)  # [kv, m, group, hd]
    first = min(max(0, plan.start - window + 1) // BLOCK, plan.shared) if window else 0
    parts: list[tuple[Tensor, Tensor, Tensor]] = []  # rows by owner of keys, keys, values
    if plan.shared > first:
        span = slice(first * BLOCK, plan.shared * BLOCK)
        rows = per_head.reshape(kv_heads, m * group, width)
        k, v = (c[:, span].float().reshape(kv_heads, -1, BLOCK, width) for c in (keys, values))
        parts.append((rows, k, v))
    if plan.gather is not None:
        rows = per_head.reshape(kv_heads * m, group, width)
        k, v = (c[:, plan.gather].float().reshape(kv_heads * m, -1, BLOCK, width) for c in (keys, values))
        parts.append((rows, k, v))
    s = torch.cat([_scores(rows, k).reshape(kv_heads, m, group, -1, BLOCK) for rows, k, _ in parts], 3)
    s *= scale
    if softcap:
        s = torch.tanh(s / softcap) * softcap
    at = torch.arange(first * BLOCK, (first + s.shape[3]) * BLOCK, device=q.device)
    hidden = at > plan.positions[:, None]
    if window:
        hidden |= at <= plan.positions[:, None] - window
    s.masked_fill_(hidden.view(1, m, 1, -1, BLOCK), float("-inf"))
    s -= s.amax((3, 4), keepdim=True)
    p = torch.exp(s)
    mass = _halve(p)
    out = torch.zeros(kv_heads, m, group, width, device=q.device)
    total = torch.zeros(kv_heads, m, group, 1, device=q.device)
    block = 0
    for rows, _, v in parts:
        count = v.shape[1]
        weights = p[:, :, :, block : block + count].reshape(*rows.shape[:2], count, BLOCK)
        for part in _weighted(weights, v):
            out += part.reshape(out.shape)
            total += mass[..., block, None]
            block += 1
    out /= total
    return out.transpose(0, 1).reshape(m, heads * width)


def _halve(p: Tensor) -> Tensor:
    """Sum the last axis (a power of two) pairwise: elementwise additions have one result on any layout."""
    while p.shape[-1] > 1:
        half = p.shape[-1] // 2
        p = p[..., :half] + p[..., half:]
    return p[..., 0]


def _tiles(x: Tensor) -> Tensor:
    """[n, r, ...] -> [n, r / TILE rounded up, TILE, ...], zero rows appended."""
    short = -x.shape[1] % TILE
    if short:
        x = torch.cat([x, x.new_zeros(x.shape[0], short, *x.shape[2:])], 1)
    return x.reshape(x.shape[0], -1, TILE, *x.shape[2:])


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """Rows q [n, r, hd] of n owners with their keys k [n, b, BLOCK, hd] -> [n, r, b, BLOCK]."""
    n, blocks, _, width = k.shape
    flat = k.reshape(n * blocks, BLOCK, width).transpose(1, 2)
    found = []
    for tile in _tiles(q).unbind(1):
        spread = tile[:, None].expand(n, blocks, TILE, width).reshape(n * blocks, TILE, width)
        found.append(torch.bmm(spread, flat).view(n, blocks, TILE, BLOCK).transpose(1, 2))
    return torch.cat(found, 1)[:, : q.shape[1]]


def _weighted(p: Tensor, v: Tensor) -> Sequence[Tensor]:
    """Weights p [n, r, b, BLOCK] on values v [n, b, BLOCK, hd] -> b sums [n, r, hd], one for each block."""
    n, blocks, _, width = v.shape
    flat = v.reshape(n * blocks, BLOCK, width)
    found = []
    for tile in _tiles(p).unbind(1):
        spread = tile.transpose(1, 2).reshape(n * blocks, TILE, BLOCK)
        found.append(torch.bmm(spread, flat).view(n, blocks, TILE, width))
    return torch.cat(found, 2)[:, :, : p.shape[1]].unbind(1)
