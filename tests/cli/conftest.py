"""What tests of several commands share."""

from __future__ import annotations

import pytest

import augury


@pytest.fixture
def nothing_loaded(monkeypatch):
    def load(*args, **options):
        raise AssertionError("something was loaded")

    monkeypatch.setattr(augury, "load", load)
