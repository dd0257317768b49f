"""The page in a real browser, before a real server on a real model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from paged import NAME, Server, Visit

import augury
from augury.engine.costs import Meter

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Flat(Meter):
    """Forwards of every size take as long, whatever is served: what is guessed is always worth verifying."""

    def served(self, rows: int, read: float, verify_ms: float, rest_ms: float) -> None: ...


@pytest.fixture(scope="session")
def engine() -> Iterator[augury.Engine]:
    """With two drafters that copy."""
    made = augury.load(NAME, drafters="suffix,prediction", max_model_len=1024, measure=False)
    made.parts = replace(made.parts, meter=Flat((1, 66), np.array([12.0, 12.0]), 0.0))
    yield made
    made.close()


@pytest.fixture(scope="session")
def server(engine) -> Iterator[Server]:
    """One server for most tests."""
    made = Server(engine)
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def browser():
    """A browser that is there; none is fetched. Its driver's event loop ends with it: other tests run their own."""
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no chromium is installed: make browser")
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """Open a page; at the end look whether it behaved. Options are those of a browser's context."""
    visits = []

    def opened(url: str, **options) -> Visit:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, "locale": "en-GB", **options})
        context.set_default_timeout(30_000)
        made = Visit(context.new_page())
        visits.append((made, url.split("#")[0]))
        made.page.goto(url)
        made.page.wait_for_selector(".top .here, .note.key")
        return made

    yield opened
    for made, origin in visits:
        made.check(origin)
        made.page.context.close()
