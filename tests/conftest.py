"""What tests of several rooms share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def engine():
    """The embedded model with its default drafters; one for all tests, so each leaves it as it was."""
    import augury

    return augury.load("smollm2-135m", max_model_len=2048)
