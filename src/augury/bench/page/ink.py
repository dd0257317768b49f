"""What all plots of a page are drawn with: colours, round ticks, and text that XML can hold."""

from __future__ import annotations

import math
import unicodedata
from html import escape

# After Okabe and Ito, who chose colours that all kinds of colour vision tell apart; darker and lighter for contrast.
LIGHT = ("#0067a5", "#b85000", "#00785a", "#a8397f", "#7a6a00", "#444444")
DARK = ("#56b4e9", "#f0a04b", "#2cc79a", "#e38fc0", "#e6d84a", "#c0c0c0")
"""Colours of light and of dark pages, in one order."""


def palette(plot: str) -> str:
    """Style rules for the classes ``c0``, ``c1``... inside a class ``plot``, for light pages and for dark ones."""
    light, dark = (
        "".join(f".{plot} .c{i}{{color:{colour}}}" for i, colour in enumerate(colours)) for colours in (LIGHT, DARK)
    )
    return f"{light}@media (prefers-color-scheme:dark){{{dark}}}"


def ticks(low: float, high: float) -> list[float]:
    """Round values from at or below ``low`` to at or above ``high``: steps of 1, 2 or 5 times a power of ten.

    Raises:
        ValueError: one is not finite.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("every value of a plot must be finite")
    span = high - low or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(m * power for m in (1, 2, 5, 10) if span / (m * power) <= 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def text(words: str) -> str:
    """Text as XML can hold it: control characters are no part of it, in no spelling."""
    return escape(
        "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cs") or c in "\ufffe\uffff" else c for c in words)
    )
