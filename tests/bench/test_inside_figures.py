"""What the figures of drafters inside other engines are computed by."""

import pytest

from augury.bench.inside import SIZES, Answered, Watch, gain, race, show, table
from augury.bench.prompts import Prompt


def test_rows_that_cost_nothing_bring_all_right_guesses_and_dear_ones_none():
    free, dear = table([10.0] * len(SIZES)), table([10.0 * size for size in SIZES])
    assert gain(free, 1.0) == pytest.approx(SIZES[-1])
    assert gain(free, 0.5) == pytest.approx(2.0, abs=1e-3)
    assert gain(dear, 0.9) == 1.0


def test_between_sizes_costs_are_straight():
    costs = table([10.0, 12.0, 20.0, 40.0, 100.0])
    assert costs.verify[3] == 16.0
    assert costs.verify[0] == 0.0


def test_arms_take_turns():
    order = []

    def arm(name):
        def ask(prompt, ids, most):
            order.append(name)
            return Answered((1, 2), 1.0, 2)

        return ask

    prompts = [(Prompt("1", "qa", "a"), [1]), (Prompt("2", "qa", "b"), [2])]
    found = race({"a": arm("a"), "b": arm("b")}, prompts, 8, 2)
    assert order == [*"ab", *"abba", *"baab"]  # warm; then two rounds of two prompts
    assert [len(answers) for answers in found["a"]] == [2, 2]


def test_time_is_that_between_pieces():
    clock = iter([0.0, 0.010, 0.030])
    watch = Watch(lambda: next(clock))
    for piece in ([1], [2, 3], [4]):
        watch.take(piece)
    answered = watch.answered()
    assert answered == Answered((1, 2, 3, 4), 10.0, 3)


def test_the_table_compares_with_plain(capsys):
    plain, drafted = Answered((1, 2, 3, 4), 10.0, 4), Answered((1, 2, 3, 4), 5.0, 2)
    show({"plain": [[plain]], "ours": [[drafted]]}, ["qa"])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("ours"))
    assert line.split() == ["ours", "5.00", "2.00", "2.00", "2.00", "1/1"]
