import pytest

from augury.bench.peers import standings
from augury.bench.runners import Timed
from augury.errors import InputError


def timed(*stamps: tuple[float, int], tokens: tuple[int, ...] = (1, 2, 3)) -> Timed:
    return Timed(tokens, stamps)


def test_a_token_takes_the_time_between_first_and_last_piece():
    assert timed((100.0, 1), (110.0, 2), (120.0, 3)).token_ms == 10.0
    assert timed((100.0, 4), (130.0, 7)).token_ms == 10.0
    assert timed((100.0, 3)).token_ms is None


def test_peers_are_compared_on_prompts_that_all_answered_in_pieces():
    slow, fast, whole = timed((0.0, 1), (20.0, 2)), timed((0.0, 1), (5.0, 2)), timed((0.0, 3))
    rows = standings(["first", "second"], [[[slow], [slow, slow, slow]], [[whole], [fast, slow, fast]]])
    assert [r.token_ms for r in rows] == [20.0, 5.0]
    assert [r.speed for r in rows] == [1.0, pytest.approx(4.0)]


def test_equal_answers_are_counted_against_the_first_answer_of_the_first_peer():
    one, other = timed((0.0, 1), (1.0, 2)), timed((0.0, 1), (1.0, 2), tokens=(7,))
    rows = standings(["first", "second"], [[[one, one]], [[one, other]]])
    assert [(r.equal, r.answers) for r in rows] == [(2, 2), (1, 2)]


def test_nothing_to_compare_is_an_error():
    with pytest.raises(InputError, match="allow more tokens"):
        standings(["first"], [[[timed((0.0, 3))]]])
