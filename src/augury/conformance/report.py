"""What the kit found, one line for each thing it tried."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One thing that was tried.

    Attributes:
        name: what.
        passed: whether it was as it must be.
        detail: figures, or what was wrong, in one line.
    """

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Report:
    """Everything that was tried on one subject."""

    subject: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether all was as it must be."""
        return all(c.passed for c in self.checks)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that were not passed."""
        return tuple(c.name for c in self.checks if not c.passed)

    def __str__(self) -> str:
        lines = [f"{self.subject}: {'passed' if self.passed else 'FAILED'}"]
        return "\n".join(lines + [f"  {'ok  ' if c.passed else 'FAIL'} {c.name}: {c.detail}" for c in self.checks])
