import numpy as np
import pytest

from augury.bench.runners import PeerFailed, Setup, Timed
from augury.bench.standings import compare, standings, usable
from augury.errors import InputError


def timed(*stamps: tuple[float, int], tokens: tuple[int, ...] = (1, 2, 3)) -> Timed:
    return Timed(tokens, stamps)


def each(ms: float, tokens: tuple[int, ...] = (1, 2, 3)) -> Timed:
    """An answer whose tokens take so long each."""
    return timed((0.0, 1), (ms, 2), (2 * ms, 3), tokens=tokens)


class Scripted:
    """Answers with what it is given; an error is raised instead."""

    def __init__(self, name: str, *answers: Timed | PeerFailed, same: bool = True) -> None:
        self.setup = Setup(name, "augury" if name.startswith("augury") else "toy", "", same)
        self.versions = {"toy": "1"}
        self.answers = list(answers)
        self.asked = 0

    def answer(self, prompt, max_tokens, eos):
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, PeerFailed):
            raise answer
        return answer


def test_a_token_takes_the_time_between_first_and_last_piece():
    assert timed((100.0, 1), (110.0, 2), (120.0, 3)).token_ms == 10.0
    assert timed((100.0, 4), (130.0, 7)).token_ms == 10.0
    assert timed((100.0, 3)).token_ms is None
    assert timed().token_ms is None


def test_peers_are_compared_on_prompts_that_all_answered_in_pieces():
    whole = timed((0.0, 3))
    answers = [[[each(20.0)], [each(20.0)] * 3], [[whole], [each(5.0), each(20.0), each(5.0)]]]
    assert usable(answers) == [1]
    rows = standings([Scripted("augury plain"), Scripted("second")], ["prose", "code"], answers)
    assert [r.token_ms for r in rows] == pytest.approx([20.0, 5.0])
    assert [r.speed for r in rows] == pytest.approx([1.0, 4.0])


def test_kinds_count_alike_however_many_prompts_they_have():
    peers = [Scripted("augury plain"), Scripted("augury drafted")]
    kinds = ["code", "code", "code", "prose"]
    plain = [[each(10.0)]] * 4
    drafted = [[each(2.0)], [each(2.5)], [each(3.125)], [each(10.0)]]
    rows = standings(peers, kinds, [plain, drafted])
    assert rows[1].by_kind == pytest.approx({"code": 2.5, "prose": 10.0})
    assert rows[1].token_ms == pytest.approx(5.0)
    assert rows[1].speed == pytest.approx(2.0)


def test_the_best_peer_is_the_fastest_other_engine_with_the_same_weights():
    peers = [
        Scripted("augury plain"), Scripted("augury drafted"), Scripted("slow"), Scripted("fast"),
        Scripted("fewer bits", same=False),
    ]  # fmt: skip
    rows = standings(peers, ["code"], [[[each(ms)]] for ms in (10.0, 4.0, 40.0, 8.0, 2.0)])
    assert [r.to_best for r in rows] == pytest.approx([0.8, 2.0, 0.2, 1.0, 4.0])
    alone = standings(peers[:2], ["code"], [[[each(10.0)]], [[each(4.0)]]])
    assert [r.to_best for r in alone] == [None, None]


def test_equal_answers_are_counted_against_the_first_answer_of_the_first_peer():
    peers = [Scripted("augury plain"), Scripted("second")]
    rows = standings(peers, ["code"], [[[each(1.0)] * 2], [[each(1.0), each(1.0, tokens=(7,))]]])
    assert [(r.equal, r.answers) for r in rows] == [(2, 2), (1, 2)]


def test_nothing_to_compare_is_an_error():
    with pytest.raises(InputError, match="allow more tokens"):
        standings([Scripted("augury plain")], ["code"], [[[timed((0.0, 3))]]])


def test_a_peer_that_fails_is_asked_no_more_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr("augury.bench.standings.REST_SECONDS", 0.0)
    good = Scripted("augury plain", *[each(1.0)] * 5)
    dies = Scripted("dies", each(1.0), each(1.0), PeerFailed("no memory"))
    never = Scripted("never", PeerFailed("no weights"))
    prompts = [np.arange(3, dtype=np.int32)] * 2
    counted = []
    answers, failed = compare(
        [good, dies, never], prompts, [0], max_tokens=3, rounds=2, progress=lambda: counted.append(1)
    )
    assert failed == {1: "no memory", 2: "no weights"}
    assert [[len(rounds) for rounds in of_peer] for of_peer in answers] == [[2, 2], [1, 0], [0, 0]]
    assert (good.asked, dies.asked, never.asked) == (5, 3, 1)
    assert len(counted) == 12


def test_the_end_of_an_answer_is_no_difference(monkeypatch):
    monkeypatch.setattr("augury.bench.standings.REST_SECONDS", 0.0)
    peers = [Scripted("augury plain", *[each(1.0, (5, 6, 2))] * 2), Scripted("other", *[each(1.0, (5, 6))] * 2)]
    answers, _ = compare(peers, [np.arange(3, dtype=np.int32)], [2], max_tokens=3, rounds=1)
    assert [of_peer[0][0].tokens for of_peer in answers] == [(5, 6), (5, 6)]
    assert [row.equal for row in standings(peers, ["code"], answers)] == [1, 1]
