"""The rules on single steps: exact laws by running every branch of chance, and what each rule must refuse."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.accept import RULES, block, rejection, walk
from augury.conformance.exact import ExactNoise, outcomes
from augury.errors import InputError
from augury.noise import Noise, Stream, race
from augury.tree import DraftTree

V = 3


def words(tree, node):
    return tuple(int(tree.tokens[i]) for i in tree.path(node))


def emitted(tree, path):
    return (*(int(tree.tokens[i]) for i in path.nodes), path.next_token)


@st.composite
def trees(draw, size=10):
    parents = [draw(st.integers(-1, i - 1)) for i in range(draw(st.integers(0, size)))]
    tokens = [draw(st.integers(0, V - 1)) for _ in parents]
    return DraftTree.of(tokens, parents, np.zeros(len(parents)))


@st.composite
def laws(draw, zeros=True):
    weights = [draw(st.sampled_from([0, 1, 2, 5] if zeros else [1, 2, 5])) for _ in range(V)]
    weights[draw(st.integers(0, V - 1))] += 1
    return np.array(weights) / sum(weights)


# ---- the walk -------------------------------------------------------------------------------------------------------


@given(trees(), st.integers(0, 1000))
def test_walk_goes_as_far_as_the_target_goes_along(tree, seed):
    """The target's token is a function of the words before it, so the answer is one chain of words."""

    def target(said):
        return int(np.random.default_rng([seed, *said]).integers(V))

    asked = []

    class Drawn:
        def __getitem__(self, row):
            asked.append(row)
            return target(words(tree, row - 1))

    path = walk(tree, Drawn())
    answer = []
    while len(answer) <= len(tree):
        answer.append(target(answer))
    depth = max(k for n in range(-1, len(tree)) for k in [len(words(tree, n))] if list(words(tree, n)) == answer[:k])
    assert list(emitted(tree, path)) == answer[: depth + 1]
    assert tuple(tree.path(path.nodes[-1]) if path.nodes else []) == path.nodes
    assert len(asked) == len(path.nodes) + 1, "one draw for each emitted token"
    assert path == walk(tree, Drawn())


def test_walk_follows_twins_together():
    tree = DraftTree.of([1, 1, 2, 0], [-1, -1, 1, 2], [0.5] * 4)
    assert walk(tree, [1, 2, 2, 0, 1]).nodes == (1, 2, 3)
    assert walk(tree, [2, 2, 2, 0, 1]).nodes == ()


# ---- exact laws of single steps -------------------------------------------------------------------------------------


def step_law(rule, tree, law):
    """Law of the emitted words."""

    def step(chances):
        return emitted(tree, rule(tree, lambda row: law(words(tree, row - 1)), ExactNoise(chances), 5))

    return outcomes(step)


def completed(law, step, length):
    """Law of the first ``length`` words when plain decoding goes on behind the step."""
    total = dict.fromkeys(itertools.product(range(V), repeat=length), 0.0)
    for said, p in step.items():
        for answer in total:
            n = min(len(said), length)
            if answer[:n] == said[:n]:
                rest = np.prod([law(answer[:k])[answer[k]] for k in range(n, length)])
                total[answer] += p * float(rest)
    return total


def assert_same_law(law, step, length=3):
    for answer, p in completed(law, step, length).items():
        assert p == pytest.approx(np.prod([law(answer[:k])[answer[k]] for k in range(length)]), abs=1e-12)


@st.composite
def targets(draw):
    """A law for every context of up to three words, some of them with impossible words."""
    table = {}

    def law(said):
        if said not in table:
            table[said] = draw(laws())
        return table[said]

    for k in range(4):
        for said in itertools.product(range(V), repeat=k):
            law(said)
    return lambda said: table[tuple(said)]


@settings(deadline=None, max_examples=100)
@given(targets(), trees(6))
def test_any_deterministic_tree_leaves_the_law_alone(law, tree):
    tree = tree.keep(np.flatnonzero(tree.depths <= 3).tolist())
    step = step_law(rejection, tree, law)
    assert_same_law(law, step)
    if tree.is_chain:
        assert_same_law(law, step_law(block, tree, law))


def sampled_step(rule, law, q, width, depth, mixed=()):
    """Law of a step whose children are drawn from q without replacement, followed by deterministic ones."""

    def step(chances):
        noise = ExactNoise(chances)
        tokens, parents, declared = [], [], {}
        level = [(-1, ())]
        for _ in range(depth):
            below = []
            for parent, said in level:
                waits, weights = noise.exponential(0, V), q(said)
                for _ in range(width):
                    if not weights.any():
                        break
                    token = race(weights, waits)
                    declared[len(tokens)] = weights / weights.sum()
                    below.append((len(tokens), (*said, token)))
                    tokens.append(token)
                    parents.append(parent)
                    weights = weights * (np.arange(V) != token)
                for token in mixed:
                    tokens.append(token)
                    parents.append(parent)
            level = below[:1]  # only the first child has children: branches enough
        tree = DraftTree.of(tokens, parents, np.zeros(len(tokens)), laws=declared)
        return emitted(tree, rule(tree, lambda r: law(words(tree, r - 1)), noise, 0))

    return outcomes(step)


@settings(deadline=None, max_examples=30)
@given(targets(), targets(), st.integers(1, 3), st.lists(st.integers(0, V - 1), max_size=2))
def test_sampled_siblings_and_deterministic_ones_leave_the_law_alone(law, q, width, mixed):
    assert_same_law(law, sampled_step(rejection, law, q, width, 1, mixed), 2)
    if width == 1:
        assert_same_law(law, sampled_step(rejection, law, q, 1, 2, mixed), 3)


@settings(deadline=None, max_examples=40)
@given(targets(), targets())
def test_block_leaves_the_law_alone_and_accepts_no_less(law, q):
    ways = [sampled_step(rule, law, q, 1, 3) for rule in (rejection, block)]
    for way in ways:
        assert_same_law(law, way, 3)
    one, whole = (sum(p * len(w) for w, p in way.items()) for way in ways)
    assert whole >= one - 1e-9


def test_block_accepts_more_where_it_can():
    """Two words, P uniform, Q one-sided: the gain that the paper opens with."""
    law, q = (lambda said: np.array([1 / 3, 2 / 3, 0])), (lambda said: np.array([2 / 3, 1 / 3, 0]))
    lengths = [
        sum(p * (len(w) - 1) for w, p in sampled_step(rule, law, q, 1, 2).items()) for rule in (rejection, block)
    ]
    assert lengths == pytest.approx([10 / 9, 11 / 9])


@settings(deadline=None, max_examples=40)
@given(laws(), laws(), st.integers(1, 2))
def test_share_accepted_is_what_p_and_q_allow(p, q, width):
    """One child: the sum of min(p, q). Two without replacement: the rest against the residual."""
    law = sampled_step(rejection, lambda said: p, lambda said: q, width, 1)
    share = sum(x for w, x in law.items() if len(w) == 2)
    first = float(np.minimum(p, q).sum())
    if width == 1 or first == pytest.approx(1.0):
        assert share == pytest.approx(first)
    else:
        rest = np.maximum(p - q, 0) / (1 - first)
        refused = np.maximum(q - p, 0)
        second = 0.0
        for x in np.flatnonzero(refused):
            left = q * (np.arange(V) != x)
            if left.any():
                second += float(refused[x] * np.minimum(rest, left / left.sum()).sum())
        assert share == pytest.approx(first + second)


def test_two_equal_candidates_share_by_the_target():
    p = np.array([0.4, 0.4, 0.2])
    for tokens in ([0, 1], [0, 0], [1, 0, 1]):
        tree = DraftTree.of(tokens, [-1] * len(tokens), [0.5] * len(tokens))
        step = step_law(rejection, tree, lambda said: p)
        first = [sum(x for w, x in step.items() if w[0] == t) for t in range(V)]
        assert first == pytest.approx(p.tolist())


# ---- edges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [rejection, block])
def test_empty_tree_draws_from_p(rule):
    p = np.array([0.2, 0.5, 0.3])
    step = step_law(rule, DraftTree.empty(), lambda said: p)
    assert step == pytest.approx({(0,): 0.2, (1,): 0.5, (2,): 0.3})


@pytest.mark.parametrize("rule", [rejection, block])
def test_q_equal_to_p_accepts_everything(rule):
    p = np.array([0.2, 0.5, 0.3])
    step = sampled_step(rule, lambda said: p, lambda said: p, 1, 3)
    assert all(len(w) == 4 for w, x in step.items() if x > 1e-12)
    assert sum(step.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("rule", [rejection, block])
def test_impossible_token_is_never_emitted_and_certain_one_always(rule):
    never, always = np.array([0.0, 0.5, 0.5]), np.array([1.0, 0.0, 0.0])
    tree = DraftTree.chain([0, 0], [0.5, 0.5])
    assert {w[0] for w in step_law(rule, tree, lambda said: never)} == {1, 2}
    assert step_law(rule, tree, lambda said: always) == {(0, 0, 0): 1.0}


@pytest.mark.parametrize("rule", [rejection, block])
@pytest.mark.parametrize("q", [[0, 1, 0], [0.5, np.nan, 0.5], [np.inf, 0, 0], [1.0, -0.5, 0.5], [np.nan] * 3])
def test_law_that_could_not_have_drawn_its_token_counts_as_none(rule, q):
    """Taken as it stands the first would make acceptance certain, the others leave no law to draw from."""
    p = np.array([0.1, 0.3, 0.6])
    tree = DraftTree.chain([0], [0.5], laws={0: np.array(q, np.float32)})
    assert_same_law(lambda said: p, step_law(rule, tree, lambda said: p), 2)


@pytest.mark.parametrize("rule", [rejection, block])
def test_declared_laws_are_read_by_their_proportions(rule):
    p, q = np.array([0.1, 0.3, 0.6]), np.array([0.3, 0.3, 0.4])
    chain = [DraftTree.chain([0], [0.5], laws={0: (scale * q).astype(np.float32)}) for scale in (1, 7)]
    one, other = (step_law(rule, tree, lambda said: p) for tree in chain)
    assert all(one.get(w, 0.0) == pytest.approx(other.get(w, 0.0), abs=1e-6) for w in {*one, *other})


@pytest.mark.parametrize("rule", [rejection, block])
def test_laws_nearly_equal_leave_no_dust(rule):
    """q is p rounded to f32: the residual is rounding error, and must stay a law."""
    p = np.full(V, 1 / 3)
    for seed in range(200):
        tree = DraftTree.chain([seed % V] * 3, [0.5] * 3, laws={i: p.astype(np.float32) for i in range(3)})
        path = rule(tree, lambda row: p, Noise(seed, Stream.ACCEPT), 0)
        assert path.nodes == (0, 1, 2)


def test_block_refuses_branches():
    with pytest.raises(InputError, match="use acceptance='rejection'"):
        block(DraftTree.of([0, 1], [-1, -1], [0.5, 0.5]), lambda row: np.ones(V) / V, Noise(0, 0), 0)


def test_rows_are_asked_once_and_parents_first():
    p = np.full(V, 1 / V)
    tree = DraftTree.chain([0, 1, 2, 0], [0.5] * 4)
    for rule in (rejection, block):
        for seed in range(100):
            asked = []
            path = rule(tree, lambda row: asked.append(row) or p, Noise(seed, Stream.ACCEPT), 3)  # noqa: B023
            assert asked == sorted(set(asked))
            assert len(path.nodes) in asked


def test_rules_by_name():
    assert {name: (r.apply, r.laws, r.trees) for name, r in RULES.items()} == {
        "coupled": (walk, False, True),
        "rejection": (rejection, True, True),
        "block": (block, True, False),
    }
