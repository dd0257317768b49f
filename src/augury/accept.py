"""When a draft token is kept: the target's word against the drafter's.

p is the target's law of a row, q a drafter's; x is a draft token. A step emits the accepted path and one token more.

``walk`` (the *coupled* rule, and greedy decoding): the target's own token of a row is already drawn; a child that
equals it is accepted. The answer is then what plain decoding gives, token by token, whoever drafted.

``rejection`` (Leviathan et al. 2023, Chen et al. 2023; several candidates: Miao et al. 2024, Yang et al. 2024):
children are judged in order against a residual r, at first p. A *sampled* child x ~ q is accepted with probability
min(1, r(x) / q(x)), else r becomes norm(max(0, r - q)). A *deterministic* child, q its point mass, is accepted
with probability r(x), else r loses x. When no child is left the next token is drawn from r.

``block`` (Sun et al. 2024, arXiv 2403.10444, Algorithm 2): a chain is judged as a whole, which accepts at least as
many tokens on average as ``rejection``.

The last two emit tokens of the target's law whatever was drafted, if each declared q is the law its token was drawn
from *given everything else that the verdicts see*: its path, its earlier siblings, and the noise of earlier steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np

from augury.errors import InputError
from augury.noise import LawArray, race
from augury.tree import DraftTree, FloatArray, Path

Coins = tuple[float | None, ...]
"""For each node of a tree the number in (0, 1) that decided on it, or None."""

Law = Callable[[int], LawArray]
"""Row -> the target's processed law f64[V] of the token that follows it; asked once for a row, parents first."""


class Noise(Protocol):
    """The verdicts' source of chance: ``augury.noise.Noise``, of a stream that drafters do not use."""

    def exponential(self, position: int, n: int) -> LawArray:
        """f64[n] of independent standard exponentials."""
        ...

    def uniform(self, position: int, index: int) -> float:
        """A number in (0, 1)."""
        ...


class Drawn(Protocol):
    """The target's own token by row; may draw it when asked."""

    def __getitem__(self, row: int, /) -> int:
        """The token that follows a row."""
        ...


def walk(tree: DraftTree, drawn: Drawn) -> Path:
    """Follow the target's own tokens down the tree.

    Siblings with the same token are followed together, since behind them the target's law is the same; the first
    of them that leads furthest is kept. Only rows on the accepted path, or its twins, are asked.
    """
    here = [-1]
    while True:
        token = drawn[here[0] + 1]
        children = [child for node in here for child in tree.children(node) if tree.tokens[child] == token]
        if not children:
            return Path(tuple(tree.path(here[0])), token)
        here = children


def rejection(tree: DraftTree, law: Law, noise: Noise, position: int) -> Path:
    """Recursive rejection, child by child; a chain is the case of one child.

    Args:
        tree: deterministic and sampled nodes in any mixture.
        law: the target's laws.
        noise: source of the verdicts and of the last token.
        position: where the first emitted token will stand.
    """
    node, depth = -1, 0
    while True:
        residual = law(node + 1)
        for index, child in enumerate(tree.children(node)):
            x = int(tree.tokens[child])
            q = _draft_law(tree, child, len(residual))
            # u < r(x) / q(x) without the division; q(x) > 0 because x was drawn from q.
            if noise.uniform(position + depth, index) * float(q[x]) < float(residual[x]):
                node, depth = child, depth + 1
                break
            residual = _rest(residual, q)
        else:
            return Path(tuple(tree.path(node)), race(residual, noise.exponential(position + depth, len(residual))))


def block(tree: DraftTree, law: Law, noise: Noise, position: int) -> Path:
    """Block verification of a chain; see ``rejection`` for the arguments.

    With P_i, Q_i the laws behind the first i draft tokens (Q_i of draft token i + 1) and kept_i their joint ratio,

        kept_0 = 1,  kept_i = min(1, kept_{i-1} P_{i-1}(x_i) / Q_{i-1}(x_i))
        R_i = sum over x of max(0, kept_i P_i(x) - Q_i(x))
        h_i = R_i / (R_i + 1 - kept_i) before the end of the chain, kept_n at its end

    the last i with u_i <= h_i (0 if none) tokens are accepted; the next is drawn from norm(max(0, kept_i P_i - Q_i)),
    or from P_n behind the whole chain.

    Raises:
        InputError: the tree has siblings.
    """
    if not tree.is_chain:
        raise InputError("block verification judges chains and this tree has branches; use acceptance='rejection'")
    kept, accepted = 1.0, 0
    residual = np.zeros(0)
    for i in range(len(tree)):
        p = law(i)
        q = _draft_law(tree, i, len(p))
        over = np.maximum(kept * p - q, 0.0)
        mass = float(over.sum())
        if i == 0 or _verdict(noise, position, i) * (mass + 1.0 - kept) <= mass:
            # Without mass p = q, and the next verdict is sure to be favourable, up to rounding.
            accepted, residual = i, over if mass > 0.0 else p
        x = int(tree.tokens[i])
        kept = min(1.0, kept * float(p[x]) / float(q[x]))
        if kept == 0.0:
            break
    else:
        if len(tree) == 0 or _verdict(noise, position, len(tree)) <= kept:
            accepted, residual = len(tree), law(len(tree))
    return Path(tuple(range(accepted)), race(residual, noise.exponential(position + accepted, len(residual))))


def _tried(tree: DraftTree, path: Path, noise: Noise, position: int) -> Coins:
    """Of ``rejection``: children of the accepted nodes, up to the one that was accepted."""
    coins: list[float | None] = [None] * len(tree)
    for depth, node in enumerate((-1, *path.nodes)):
        for index, child in enumerate(tree.children(node)):
            coins[child] = noise.uniform(position + depth, index)
            if child in path.nodes:
                break
    return tuple(coins)


def _blocked(tree: DraftTree, path: Path, noise: Noise, position: int) -> Coins:
    """Of ``block``: that of a node decides whether the chain is kept up to it, unless one before it cannot be."""
    return tuple(_verdict(noise, position, node + 1) for node in range(len(tree)))


@dataclass(frozen=True)
class AcceptRule:
    """A rule and what it needs.

    Attributes:
        apply: ``walk(tree, drawn)`` or ``rule(tree, law, noise, position)``.
        laws: whether it judges by laws; if not, by the target's drawn tokens.
        trees: whether it takes trees; if not, chains only.
        coins: ``(tree, path, noise, position)`` -> the chance that decided on each node, None where none did; for
            those who explain a verdict. None for a rule without chance.
    """

    apply: Callable[..., Path]
    laws: bool
    trees: bool
    coins: Callable[[DraftTree, Path, Noise, int], Coins] | None = None


RULES: Mapping[str, AcceptRule] = MappingProxyType(
    {
        "coupled": AcceptRule(walk, laws=False, trees=True),
        "rejection": AcceptRule(rejection, laws=True, trees=True, coins=_tried),
        "block": AcceptRule(block, laws=True, trees=False, coins=_blocked),
    }
)
"""Every acceptance rule by name."""


def _verdict(noise: Noise, step: int, index: int) -> float:
    """The chance of a verdict of ``block``, named by the step's first position and not by the token's own.

    Verdicts on tokens that are not kept shape the step too: were they met again by the next step, at the same
    positions, its verdicts would depend on this one's.
    """
    return noise.uniform(step, index)


def _draft_law(tree: DraftTree, node: int, vocab_size: int) -> LawArray:
    """The law q of a node, f64[V]; a point mass if it declares none, or one that could not have drawn its token."""
    declared: FloatArray | None = tree.laws.get(node)
    x = int(tree.tokens[node])
    if declared is not None and declared[x] > 0.0 and declared.min() >= 0.0:  # NaN is not >= 0
        q: LawArray = declared.astype(np.float64)
        total = q.sum()
        if np.isfinite(total):
            q /= total
            return q
    point = np.zeros(vocab_size)
    point[x] = 1.0
    return point


def _rest(residual: LawArray, q: LawArray) -> LawArray:
    """norm(max(0, r - q)) behind a refused token."""
    rest = np.maximum(residual - q, 0.0)
    total = rest.sum()
    # Nothing is left only where r = q, which refuses nothing: rounding alone leads here.
    return rest / total if total > 0.0 else residual
