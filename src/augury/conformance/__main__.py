"""``python -m augury.conformance [drafter ...]``: the kit on drafters by name, and the kit itself on wrong decoders.

Names are those of ``augury.drafters``, or ``module:Class`` of your own. Without names every drafter that needs
nothing is tried, and every wrong decoder must be caught. The exit status is 1 if anything was not as it must be.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from augury.conformance.kit import check_drafter, check_target
from augury.conformance.toys import ToyTarget
from augury.conformance.wrong import WRONG
from augury.drafters import DRAFTERS, make
from augury.errors import AuguryError


def main(names: Sequence[str]) -> int:
    """Try, print, and give the exit status."""
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
    sys.exit(main(sys.argv[1:]))
