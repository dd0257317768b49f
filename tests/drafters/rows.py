"""Steps of a target whose law behind a token is that token's own: what follows is a table of logits."""

from __future__ import annotations

import time

import numpy as np
from replay import grow

from augury.accept import walk
from augury.drafters.drafter import Observation
from augury.tree import DraftTree, Path


class Chain:
    """Behind token t the target holds ``successors(t)`` likely, likeliest first, a nat apart."""

    def __init__(self, successors, vocabulary) -> None:
        self._successors, self.vocabulary = successors, vocabulary

    def row(self, token):
        row = np.full(self.vocabulary, -20.0, np.float32)
        for rank, successor in enumerate(self._successors(token)):
            row[successor] = 5.0 - rank
        return row

    def step(self, drafter, view, tree, dice=None):
        """Verify a tree, greedily without dice, show the drafter what came, and give the step's path."""
        nodes = [int(view.tokens[-1]), *tree.tokens.tolist()]
        logits = np.stack([self.row(token) for token in nodes])
        noise = 0.0 if dice is None else dice.gumbel(size=logits.shape)
        path = walk(tree, (logits + noise).argmax(axis=1).tolist())
        show(drafter, view, tree, path, logits)
        return path

    def cost(self, drafter, view, steps=80):
        """Median seconds of a drafter's part of a step in which all is refused."""
        view._buffer[0] = np.concatenate([view.tokens, np.zeros(4000, np.int32)])  # growth is not what is measured
        times = []
        for _ in range(steps):
            begin = time.perf_counter()
            tree = drafter.propose(view, 8)
            took = time.perf_counter() - begin
            logits = np.stack([self.row(t) for t in [int(view.tokens[-1]), *tree.tokens.tolist()]])
            token = int(logits[0].argmax())
            view._buffer[0][view.length] = token
            view._length[0] += 1
            begin = time.perf_counter()
            drafter.observe(view, Observation(tree, Path((), token), np.asarray([token], np.int32), logits, None))
            times.append(took + time.perf_counter() - begin)
        return float(np.median(times))


def show(drafter, view, tree, path, logits):
    """Commit a path and let the drafter observe it."""
    tokens = np.asarray([*(int(tree.tokens[i]) for i in path.nodes), path.next_token], np.int32)
    grow(view, tokens)
    drafter.observe(view, Observation(tree, path, tokens, logits, None))


def miss(drafter, view, tokens, parents, rows, next_token):
    """A step in which every node of a tree was refused; ``rows``: row -> logits by token."""
    tree = DraftTree.of(tokens, parents, [0.5] * len(tokens))
    logits = np.full((len(tokens) + 1, 100), -20.0, np.float32)
    for row, values in rows.items():
        for token, value in values.items():
            logits[row, token] = value
    show(drafter, view, tree, Path((), next_token), logits)
