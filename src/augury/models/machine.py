"""The machine: its processor, and the folder in which the user's programs keep what they can make again."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path


def usable_cores() -> int | None:
    """Cores this process may use, where the system says so, else all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@dataclass(frozen=True)
class Processor:
    """A processor as the system describes it.

    Attributes:
        name: of the model.
        flags: what it can, in the words of Linux; empty elsewhere.
    """

    name: str
    flags: frozenset[str] = frozenset()


def processor() -> Processor:
    """The first processor of this machine."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        first = ""
    said = {key.strip(): value.strip() for key, _, value in (row.partition(":") for row in first.splitlines())}
    name = said.get("model name") or platform.processor() or platform.machine()
    return Processor(name, frozenset(said.get("flags", "").split()))


def own_folder() -> Path | None:
    """The user's own cache folder, or None when there is none that only the user can write to."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "augury"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except (OSError, RuntimeError):
        return None
    if not hasattr(os, "getuid"):
        return None
    mine = status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK)
    return folder if mine and not folder.is_symlink() else None
