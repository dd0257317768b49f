"""``python -m augury.bench.story``: the pictures of docs/how-it-works.md; ``--run`` traces their answers anew."""

from __future__ import annotations

import argparse
from pathlib import Path

from augury.bench.story import drawn, runs


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(prog="python -m augury.bench.story", description=__doc__)
    parser.add_argument("--run", action="store_true", help="answer the prompts of the page first, and keep the trace")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="the folder of the pages; docs when not said")
    given = parser.parse_args()
    results = given.docs / "results"
    if given.run:
        runs.run(results / drawn.TRACE, results / drawn.COSTS)
    for path in drawn.write(results, given.docs / "pictures"):
        print(path)


if __name__ == "__main__":
    main()
