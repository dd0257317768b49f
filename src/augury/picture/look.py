"""The one look of all pages: palette, rules of every picture, and the page that a report is put into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from augury.picture import plot, ribbon, rows, timeline, tree
from augury.picture.ink import COLOURS, RULES


@dataclass(frozen=True)
class Grid:
    """A table of a page: its heads, its rows of cells, and what stands above it."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


def stylesheet() -> str:
    """Everything that ``bare`` pictures need: each colour as a custom property, and the rules of their classes.

    The palette follows the reader's ``prefers-color-scheme``; ``data-theme`` on the root, ``light`` or ``dark``, stands
    above it.
    """
    light, dark = ("".join(f"--{name}:{pair[i]};" for name, pair in COLOURS.items()) for i in (0, 1))
    pictures = "".join(kind.RULES for kind in (plot, rows, tree, timeline, ribbon))
    return (
        f":root{{color-scheme:light dark;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
        f":root[data-theme=light]{{color-scheme:light;{light}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}\n"
        f"{RULES}{pictures}\n".replace("}.", "}\n.")
    )


def page(template: str, **values: Any) -> str:
    """One HTML page without scripts and links, light and dark; every text in ``values`` is escaped.

    Args:
        template: extends ``page.html``, fills its blocks ``title`` and ``body``; ``parts.html`` has tables and lists.
        values: of the template's names.
    """
    import minijinja

    environment = minijinja.Environment(undefined_behavior="strict", trim_blocks=True, lstrip_blocks=True)
    for part in ("page.html", "parts.html"):
        environment.add_template(part, files("augury.picture").joinpath(part).read_text("utf-8"))
    environment.add_template("own.html", template)  # the name's ending is what makes the engine escape
    return str(environment.render_template("own.html", stylesheet=stylesheet(), **values))
