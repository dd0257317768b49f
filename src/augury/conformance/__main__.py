"""``python -m augury.conformance [drafter ...]``: the kit on drafters by name, and the kit itself on wrong decoders."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from augury.conformance.kit import check_drafter, check_target
from augury.conformance.toys import ToyTarget
from augury.conformance.wrong import WRONG
from augury.drafters import DRAFTERS, make
from augury.errors import AuguryError


def main(arguments: Sequence[str] | None = None) -> int:
    """Try, print, and give the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m augury.conformance",
        description="Try drafters: the same tokens, the same law, the contract. Without names every drafter that needs "
        "nothing is tried, then the toy target, and every wrong decoder must be caught.",
        epilog="Exit status: 0 if all is as it must be, 1 if not, 2 if it could not be tried.",
    )
    parser.add_argument(
        "drafter", nargs="*", help="a name from `augury info`, with options as in ngram:min=2, or module:Class"
    )
    names: list[str] = parser.parse_args(arguments).drafter
    fine = True
    for name in names or [n for n, spec in DRAFTERS.items() if not spec.needs]:
        try:
            report = check_drafter(lambda target, name=name: make(name, target=target), name=name)  # type: ignore[misc]
        except AuguryError as error:
            print(error, file=sys.stderr)
            return 2
        print(report, flush=True)
        fine = fine and report.passed
    if not names:
        report = check_target(ToyTarget, name="toy target")
        print(report)
        fine = fine and report.passed
        for name, wrong in WRONG.items():
            caught = any(wrong.noticed in check for check in wrong.check().failed)
            print(f"{'caught' if caught else 'MISSED'} {name}: {wrong.what}", flush=True)
            fine = fine and caught
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
