"""Counting phrases: what a target says most often behind 1 to ``LONGEST`` tokens, in the answers that were collected.

Contexts may reach into the prompt, never into another conversation; what users are made to ask is not counted. A winner
that was seen m times of n has the rate m / (n + 1), and is kept if it was seen ``SEEN`` times. What changes nothing is
left out: a context behind which the longest shorter one that is kept names the same token at nearly the same rate, or
behind which neither names a token that is worth to be read along.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from augury.drafters.hints import WORTH
from augury.drafters.phrases import LONGEST, MOST, Table, power
from augury.errors import InputError
from augury.models.target import TargetInfo
from augury.train.shards import Origin, Shard, existing
from augury.tree import IntArray

SEEN = 3
"""How often a token must have come behind a context to be kept."""

_Ints = npt.NDArray[np.int64]

_NEARLY = 0.05
"""Rates that are this near are the same."""


def count_phrases(
    info: TargetInfo, directory: Path, taps: Sequence[int], seed: int, shards: int | None = None
) -> Table:
    """The phrases of a target in the shards of a directory.

    Args:
        info: of the target.
        directory: of shards.
        taps: as they were collected.
        seed: of the shards.
        shards: those numbered below it are counted; all when None.

    Raises:
        InputError: the shards are of something else, there are none, or they hold more phrases than a table may.
        ModelError: a shard is damaged.
    """
    origin = Origin.of(info, (*taps, info.layers), seed)
    talks: list[tuple[IntArray, int]] = []
    for number, path in existing(directory).items():
        if shards is None or number < shards:
            talks += Shard(path, origin).texts
    if not talks:
        raise InputError(f"there is no conversation to count in {directory}")
    keys, tokens, rates = count(talks, info.vocab_size)
    if len(keys) > MOST:
        raise InputError(f"{directory} holds {len(keys)} phrases; a table has {MOST} at most: count fewer --shards")
    return Table(keys, tokens, rates, info.vocab_size, info.name, info.digest)


def count(
    talks: Sequence[tuple[IntArray, int]], vocab_size: int
) -> tuple[npt.NDArray[np.uint64], IntArray, npt.NDArray[np.uint8]]:
    """The arrays of a ``Table``: keys u64[n], tokens i32[n], rates u8[n].

    Args:
        talks: conversations, i32[m] each, with the number of tokens in front of the answer.
        vocab_size: V.
    """
    text = np.concatenate([np.zeros(0, np.int32), *(tokens for tokens, _ in talks)]).astype(np.uint64)
    starts = np.cumsum([0, *(len(tokens) for tokens, _ in talks)])[:-1]
    places = [start + np.arange(n, len(tokens)) for start, (tokens, n) in zip(starts, talks, strict=True)]
    at = np.concatenate([np.zeros(0, np.int64), *places])  # of every token that is counted
    begun = np.repeat(starts, [len(place) for place in places])  # where its conversation began
    said, keys = text[at].astype(np.int64), np.zeros(len(at), np.uint64)
    token, rate = np.full(len(at), -1), np.zeros(len(at))  # what contexts that are kept so far say in each place
    kept: list[tuple[npt.NDArray[np.uint64], _Ints, npt.NDArray[np.float64]]] = []
    for n in range(1, LONGEST + 1):
        within = at - n >= begun
        at, begun, said = at[within], begun[within], said[within]
        keys, token, rate = keys[within], token[within], rate[within]
        keys = keys + (text[at - n] + np.uint64(1)) * np.uint64(power(vocab_size, n - 1))  # modulo 2^64
        known, first, best, most, whole = _winners(keys, said)
        stated = most / (whole + 1.0)
        same = (best == token[first]) & (np.abs(stated - rate[first]) <= _NEARLY)
        dull = (stated < WORTH) & (rate[first] < WORTH)
        chosen = (most >= SEEN) & ~same & ~dull
        kept.append((known[chosen], best[chosen], stated[chosen]))
        place = np.searchsorted(known, keys)
        speaks = chosen[place]
        token[speaks], rate[speaks] = best[place[speaks]], stated[place[speaks]]
    all_keys, tokens, rates = (np.concatenate(column) for column in zip(*kept, strict=True))
    order = np.argsort(all_keys)
    order = order[np.diff(all_keys[order], prepend=~all_keys[order[:1]]) != 0]  # two contexts may share a number
    return all_keys[order], tokens[order].astype(np.int32), np.rint(255 * rates[order]).astype(np.uint8)


def _winners(keys: npt.NDArray[np.uint64], said: _Ints) -> tuple[npt.NDArray[np.uint64], _Ints, _Ints, _Ints, _Ints]:
    """(the different keys, ascending; of each a place where it stands, what was said most often behind it, how often
    that was said, how often anything was); of tokens said equally often the least.
    """
    order = np.lexsort((said, keys))
    keys, said = keys[order], said[order]
    pairs = np.flatnonzero(_new(keys) | _new(said))
    counts = np.diff(np.append(pairs, len(keys)))
    groups = np.flatnonzero(_new(keys[pairs]))
    whole = np.add.reduceat(counts, groups) if len(groups) else np.zeros(0, np.int64)
    group = np.repeat(np.arange(len(groups)), np.diff(np.append(groups, len(pairs))))
    best = np.lexsort((-counts, group))[groups]
    return keys[pairs[groups]], order[pairs[groups]], said[pairs[best]], counts[best], whole


def _new(values: npt.NDArray[np.uint64] | _Ints) -> npt.NDArray[np.bool_]:
    """Where a value differs from the one before it; the first does."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]
