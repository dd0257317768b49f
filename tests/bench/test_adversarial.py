"""Text that nothing can be copied from, measured only where it is named."""

import pytest

from augury.bench.adversarial import WORDS, adversarial, chosen
from augury.bench.prompts import own
from augury.errors import UnknownName


def test_it_is_the_same_every_time():
    assert adversarial() == adversarial()
    # On every machine and in every Python: only random() is drawn, whose sequence is promised.
    assert adversarial()[0].text.split("\n\n")[1].split()[0] == "tkgnkuhmp"


@pytest.mark.parametrize("prompt", adversarial(), ids=lambda prompt: prompt.id)
def test_nothing_in_it_occurs_twice(prompt):
    words = prompt.text.split("\n\n")[1].split()
    assert len(set(words)) == len(words) == WORDS
    assert all(4 <= len(word) <= 9 for word in words)


def test_it_is_measured_only_where_it_is_named():
    assert chosen() == own()
    assert [p.id for p in chosen(["adversarial"])] == ["adversarial-1", "adversarial-2", "adversarial-3"]
    assert [p.kind for p in chosen(["adversarial", "qa"], 1)] == ["qa", "adversarial"]
    with pytest.raises(UnknownName, match="did you mean 'adversarial'"):
        chosen(["adverserial"])
