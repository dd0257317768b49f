"""A draft model with another tokenizer (Timor et al. 2025).

The model reads the request's text cut into its own tokens, and its guesses come back in one of two ways:

``shared``  the model's law is restricted to tokens that are the same bytes in both vocabularies and renormalised; a
            guess is then a token of both. It works under every rule (token-level intersection).
``text``    the model writes a few tokens as it likes, and the text is cut into the target's tokens behind the last
            ones of the request (look-behind). It can draft what has no common token, greedily only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from augury.budget import Costs
from augury.drafters.drafter import View
from augury.drafters.follower import Follower
from augury.drafters.retold import Retold
from augury.drafters.spine import GREEDY, RANKS, Choice, Spine, inside
from augury.drafters.survival import Line
from augury.drafters.vocabulary import same_tokens
from augury.errors import UnknownName
from augury.models.load import load_target
from augury.models.target import Target
from augury.models.tokenizer import Tokenizer
from augury.tree import DraftTree, FloatArray, IntArray

METHODS = ("shared", "text")
BEHIND = 8
"""Tokens of the request that are cut again together with a drafted text."""

LINES = (*[Line(0.9, -0.3)] * RANKS, *[Line(0.5, 0.0)] * RANKS, Line(0.5, 0.0))


class Told(Spine):
    """A spine led by a model of another vocabulary.

    Args:
        model: loaded, for this drafter alone.
        own: its tokenizer.
        tokenizer: the target's.
        vocab_size: the target's.
        slots: requests that can be open at once.
        depth: tokens of the model in one step at most.
        width: guesses of one place at most (``shared`` only).
        method: see the module's text.
        costs: see ``Spine``.
        bits: see ``Follower``.
    """

    def __init__(
        self,
        model: Target,
        own: Tokenizer,
        tokenizer: Tokenizer,
        vocab_size: int,
        slots: int,
        depth: int = 6,
        width: int = 3,
        method: str = "shared",
        costs: Callable[[], Costs | None] | None = None,
        bits: int = 16,
    ) -> None:
        if method not in METHODS:
            raise UnknownName("method of drafter foreign", method, METHODS)
        super().__init__(depth, width, LINES, costs)
        self._follower = Follower(model, slots, bits)
        self._own, self._tokenizer, self._method = own, tokenizer, method
        self._map = same_tokens(tokenizer, own, vocab_size, model.info.vocab_size)
        self._none = self._map < 0
        self._retold: dict[int, Retold] = {}
        self._read: dict[int, IntArray] = {}  # the request in the model's tokens, in this step

    def open(self, view: View) -> None:
        """Begin a request."""
        super().open(view)
        self._retold[view.id] = Retold(self._tokenizer, self._own)
        self._read[view.id] = self._retold[view.id].follow(view.tokens)
        if len(self._read[view.id]):
            self._follower.begin(view.id, self._read[view.id], view.tenant)

    def propose(self, view: View, limit: int) -> DraftTree:
        """Read what came, then guess."""
        self._read[view.id] = self._retold[view.id].follow(view.tokens)
        if not len(self._read[view.id]):
            return DraftTree.empty()
        return super().propose(view, limit) if self._method == "shared" else self._written(view, limit)

    def rows(self, view: View, paths: Sequence[Sequence[int]]) -> Sequence[FloatArray]:
        """Logits of shared tokens in the target's width."""
        (path,) = paths
        logits = self._follower.after(view.id, self._read[view.id], self._map[np.asarray(path, np.intp)])
        return [np.where(self._none, np.float32(-np.inf), logits[self._map])]

    def _written(self, view: View, limit: int) -> DraftTree:
        """The text method: a chain. A token's raw estimate is that of the model's tokens that end inside it."""
        memory = self._memory[view.id]
        ids: list[int] = []
        beliefs: list[tuple[int, float]] = [(0, 1.0)]  # bytes written, the model's own belief in all of them
        written, begin = b"", time.perf_counter()
        while len(ids) < self.depth:
            belief = beliefs[-1][1]
            found = [b for _, b in beliefs[1:]]
            if ids and not self._worth([belief], found, time.perf_counter() - begin):
                break
            clock = time.perf_counter()
            logits = self._follower.after(view.id, self._read[view.id], np.asarray(ids, np.int32))
            self._took(1e3 * (time.perf_counter() - clock))
            best = int(np.argmax(logits))
            if best in self._own.special:
                break
            ids.append(best)
            written += self._own.token_bytes(best)
            beliefs.append((len(written), belief / float(np.exp(logits - logits[best]).sum())))
        memory.places, survival, reached, end, before = {}, [], 1.0, 0, 1.0
        tokens = self._cut(view.tokens, written.decode("utf-8", "ignore"))[:limit]
        for place, token in enumerate(tokens):
            end += len(self._tokenizer.token_bytes(token))
            belief = next((b for length, b in beliefs if length >= end), beliefs[-1][1])
            choice = Choice(token, GREEDY, inside(belief / before), None)
            reached, before = reached * memory.rates.hit(GREEDY, choice.raw), belief
            survival.append(reached)
            memory.places[tuple(tokens[:place])] = [choice]
        return DraftTree.chain(tokens, survival)

    def _cut(self, tokens: IntArray, text: str) -> list[int]:
        """Target tokens of a text behind ``tokens``, cut together with as many of the last as that leaves whole."""
        if not text:
            return []
        for behind in range(min(BEHIND, len(tokens)), -1, -1):
            last = tokens[len(tokens) - behind :].tolist()
            if any(t in self._tokenizer.special for t in last):
                continue
            found = self._tokenizer.encode(
                self._tokenizer.incremental(tokens[:1]).push(last) + text, special=False
            ).tolist()
            if found[:behind] == last:
                return [int(t) for t in found[behind:]]
        return []

    def close(self, view: View) -> None:
        """Forget a request."""
        super().close(view)
        self._retold.pop(view.id, None)
        self._read.pop(view.id, None)
        self._follower.forget(view.id)


class Foreign(Told):
    """A draft model of another tokenizer by name.

    Args:
        model: an embedded name, a directory, or a GGUF file.
        method: ``shared`` or ``text``, see the module's text.
        depth: see ``Told``.
        width: see ``Told``.
        dtype: of the draft model's weights.
        bits: of those that say what follows a guess: 16, its own, or 8 or 4, quantised when it is loaded.
        context: tokens it may see; 0 is its own limit.
        threads: CPU threads; 0 is as many as the target has.
        tokenizer: the target's.
        vocab_size: the target's.
        slots: the engine's.
        target_threads: the target's.
        costs: of the target.

    Raises:
        InputError: an option cannot be honoured.
        ModelError: the files are damaged.
    """

    def __init__(
        self,
        model: str,
        method: str = "shared",
        depth: int = 6,
        width: int = 3,
        dtype: str = "bfloat16",
        bits: int = 16,
        context: int = 0,
        threads: int = 0,
        *,
        tokenizer: Tokenizer,
        vocab_size: int,
        slots: int,
        target_threads: int | None = None,
        costs: Callable[[], Costs | None] | None = None,
    ) -> None:
        if method not in METHODS:
            raise UnknownName("method of drafter foreign", method, METHODS)
        loaded = load_target(
            model, dtype=dtype, threads=threads or target_threads, max_model_len=context or None, max_num_seqs=slots
        )
        super().__init__(
            loaded.target, loaded.tokenizer, tokenizer, vocab_size, slots, depth, width, method, costs, bits
        )  # fmt: skip
