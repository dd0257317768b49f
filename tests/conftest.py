"""What tests of several rooms share."""

from __future__ import annotations

import importlib.util

import pytest

# Those of replicas run where Ray is installed: see `make ray`.
collect_ignore = [] if importlib.util.find_spec("ray") else ["replicas"]


@pytest.fixture(scope="session", autouse=True)
def _own_tables(tmp_path_factory):
    """What forwards cost is kept for this run of the tests alone."""
    from augury.engine import kept

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "own_folder", lambda: tmp_path_factory.getbasetemp())
        yield


@pytest.fixture(scope="session")
def loaded():
    """The embedded model with two drafters that copy, loaded once."""
    import augury

    return augury.load("smollm2-135m", drafters="suffix,prediction", max_model_len=2048)


@pytest.fixture
def engine(loaded):
    """The same, with all slots free again behind every test."""
    yield loaded
    loaded.close()


@pytest.fixture
def nothing_loaded(monkeypatch):
    """To load a model is a mistake."""
    import augury

    def load(*args, **options):
        raise AssertionError("something was loaded")

    monkeypatch.setattr(augury, "load", load)
