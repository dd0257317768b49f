"""End tokens are ids of the vocabulary, or an error says which are not."""

from __future__ import annotations

import numpy as np
import pytest

from augury.conformance.toys import ToyTarget
from augury.engine.engine import Engine
from augury.errors import InputError


@pytest.mark.parametrize("wrong", [-1, 5, 0xFFFFFFFF, 10**5000, 1.0, "2", None, [2]], ids=lambda _: "")
def test_an_end_token_outside_the_vocabulary_is_refused(wrong):
    with pytest.raises(InputError, match=r"eos_ids has .*; valid ids are 0\.\.4") as refused:
        Engine(ToyTarget(5), eos_ids=(2, wrong))
    assert "\n" not in str(refused.value)


def test_the_first_and_the_last_token_may_end_an_answer():
    assert Engine(ToyTarget(5), eos_ids=[0, np.int32(4)]).eos_ids == (0, 4)
