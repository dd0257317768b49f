"""Replays a known text through a drafter, as the engine would under greedy decoding."""

from __future__ import annotations

import numpy as np

from augury.accept import walk
from augury.drafters.drafter import Observation, View, tenant_of
from augury.noise import Noise
from augury.tree import DraftTree, Path


def view_of(tokens, prediction=None, number=1, cache_salt=""):
    buffer = [np.asarray(tokens, np.int32).copy()]
    return View(
        number, len(tokens), "coupled", 0, Noise(0, 0), 0.0,
        None if prediction is None else np.asarray(prediction, np.int32), tenant_of(cache_salt),
        lambda logits, path: logits, buffer, [len(tokens)], [0], [1 << 20],
    )  # fmt: skip


def grow(view, tokens):
    """Append tokens to what a view shows."""
    view._buffer[0] = np.concatenate([view.tokens, np.asarray(tokens, np.int32)])
    view._length[0] = len(view._buffer[0])


def replay(drafter, prompt, answer, limit=8, prediction=None, drafted=True, cache_salt=""):
    """Tokens emitted in each step, and (expected, real) survival of every proposed node."""
    view = view_of(prompt, prediction, cache_salt=cache_salt)
    drafter.open(view)
    emitted, survived = [], []
    answer = list(answer)
    while answer:
        tree = drafter.propose(view, limit)
        assert len(tree) <= limit
        path = walk(tree, _Known(tree, answer)) if drafted else Path((), answer[0])
        survived += [(float(s), i in path.nodes) for i, s in enumerate(tree.survival)]
        tokens = [*(int(tree.tokens[i]) for i in path.nodes), path.next_token][: len(answer)]
        assert tokens == answer[: len(tokens)]
        answer = answer[len(tokens) :]
        grow(view, tokens)
        drafter.observe(view, Observation(tree, path, np.asarray(tokens, np.int32), np.zeros((len(tree) + 1, 1)), None))
        emitted.append(len(tokens))
    drafter.close(view)
    return emitted, survived


class _Known:
    """The text's own token behind every row."""

    def __init__(self, tree: DraftTree, answer) -> None:
        self._tree, self._answer = tree, answer

    def __getitem__(self, row):
        depth = len(self._tree.path(row - 1))
        return self._answer[depth] if depth < len(self._answer) else -1
