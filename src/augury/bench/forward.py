"""What a forward costs, against its floor: ``python -m augury.bench.forward [MODEL] [--head DIRECTORY]...``.

Forwards of several sizes are timed in turn, at one context, nothing committed; the medians are printed with the
bandwidth that reading the weights once amounts to, and, for the compiled forward, where the time goes. One row in fewer
bits is what a guess of the drafter ``self`` costs; of every draft head a step of one row, and one of ``LEVEL`` rows,
which is a level of a tree, or of all places that it guesses at once. The floor is measured in the same run with the
kernel's own registers: what the same threads read, and multiply, at best. ``--lanes`` times the target in others
too, in turn with the best.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from augury.drafters.shipped import fitting, shipped
from augury.models.heads import Head, read_head
from augury.models.load import load_target
from augury.models.native import LANES, NativeForward, floors
from augury.models.runner import Runner
from augury.models.target import Target
from augury.tree import DraftTree

SIZES = (1, 2, 4, 8, 12, 16, 24, 32)
CONTEXT = 256
ROUNDS = 30
LEVEL = 8
GUESSED = (1, 4, 8)


def main(model: str = "smollm2-135m", heads: Sequence[Path] = (), lanes: Sequence[str] = ()) -> None:
    """Print the table. Without ``heads`` it has those that are shipped for the model."""
    target = _loaded(model)
    info = target.info
    steps = [_steps(target, read_head(path)) for path in heads or [shipped(kind, info) for kind in fitting(info)]]
    print(f"{info.name}, {info.runner}, {info.parameters / 1e6:.0f} M weights, context {CONTEXT}, medians of {ROUNDS}")
    slot = _filled(target)
    kinds: dict[str, Callable[[], object]] = {str(rows): partial(_verify, target, slot, rows) for rows in SIZES}
    others = set[str]()
    for name in lanes:
        other = _loaded(model, name)
        place = _filled(other)
        more = {f"{rows} {name}": partial(_verify, other, place, rows) for rows in SIZES}
        kinds, others = kinds | more, others | set(more)
    for bits in info.short[1:]:
        guess = target.shorten(bits, range(info.layers))
        kinds |= {f"{rows} int{bits}": partial(guess, slot, 0, np.zeros(rows, np.int32)) for rows in GUESSED}
    targets = set(kinds) - others  # whose phases are told
    for number, made in enumerate(steps):
        kinds |= {f"{name}{chr(39) * number}": step for name, step in made(slot).items()}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    phases: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for _ in range(ROUNDS):
        for kind, forward in kinds.items():
            forward()  # what another size left in the caches is not how decoding runs
            begin = time.perf_counter()
            forward()
            times[kind].append(1e3 * (time.perf_counter() - begin))
            if isinstance(target, Runner) and isinstance(target.forward, NativeForward):
                phases[kind].append(target.forward.phases if kind in targets else {})
    one = float(np.median(times["1"]))
    wide = max(map(len, kinds), default=0)
    print(f"{'rows':>{wide}} {'ms':>7} {'to 1 row':>9} {'GB/s':>6}  share of phases")
    for kind in kinds:
        ms = float(np.median(times[kind]))
        read = f"{info.weight_bytes / ms / 1e6:.1f}" if kind.isdigit() else ""
        shares = ""
        if phases[kind]:
            means = {k: float(np.median([p[k] for p in phases[kind]])) for k in phases[kind][0]}
            shares = "  ".join(f"{k} {v:.2f}" for k, v in means.items())
        print(f"{kind:>{wide}} {ms:>7.2f} {ms / one:>9.2f} {read:>6}  {shares}")
    if isinstance(target, Runner) and isinstance(target.forward, NativeForward):
        print(floor(info.weight_bytes, target.forward.threads))


def _loaded(model: str, lanes: str | None = None) -> Target:
    """The model for a kind of registers, or for what the environment says."""
    before = os.environ.get("AUGURY_NATIVE")
    if lanes:
        os.environ["AUGURY_NATIVE"] = lanes
    try:
        return load_target(model, max_model_len=1024, max_num_seqs=1, runner="native" if lanes else None).target
    finally:
        if before is None:
            os.environ.pop("AUGURY_NATIVE", None)
        else:
            os.environ["AUGURY_NATIVE"] = before


def _filled(target: Target) -> int:
    """A slot of ``CONTEXT`` tokens."""
    slot = target.open()
    target.prefill(slot, np.arange(CONTEXT, dtype=np.int32) % target.info.vocab_size)
    return slot


def floor(weight_bytes: int, threads: int, digits: int = 2) -> str:
    """What no forward can beat: what so many threads read and multiply at best, in milliseconds of so many digits."""
    rate, multiply = floors(threads)
    size = weight_bytes / 1e6
    return (
        f"floor: {size / rate:.{digits}f} ms to read {size:.0f} MB at {rate:.1f} GB/s, and "
        f"{size / 2 / multiply:.{digits}f} ms a row to multiply at {multiply:.0f} G/s"
    )


def _verify(target: Target, slot: int, rows: int) -> None:
    target.verify([slot], [0], [DraftTree.chain(np.arange(rows - 1, dtype=np.int32), np.ones(rows - 1, np.float32))])


def _steps(target: Target, head: Head) -> Callable[[int], dict[str, Callable[[], object]]]:
    """Take a head on board; then, of a slot that holds ``CONTEXT`` tokens: what to time, by name."""
    config = head.config
    features, ride = target.tap(config.taps), target.attach(head)

    def made(slot: int) -> dict[str, Callable[[], object]]:
        given, tokens = features(slot, 0, CONTEXT), np.zeros(CONTEXT, np.int32)
        if config.kind == "medusa":
            places = config.guesses
            return {f"medusa {places}": partial(ride, slot, CONTEXT, tokens[:1], given[-1:], True, places)}
        _, left = ride(slot, 0, tokens, given, True, 1)
        fed = np.repeat(left[-1:], LEVEL, 0)
        roots = np.full(LEVEL, -1, np.int32)
        if config.kind == "block":
            places = config.guesses - 1
            return {
                "block 1": partial(ride, slot, CONTEXT - 1, tokens[:1], given[-1:], True, 1),
                f"block +{places}": partial(ride, slot, CONTEXT, tokens[:places], fed[:places], False, places),
            }
        return {
            "eagle 1": partial(ride, slot, CONTEXT, tokens[:1], fed[:1], False, 1),
            f"eagle {LEVEL}": partial(ride, slot, CONTEXT, tokens[:LEVEL], fed, False, LEVEL, roots),
        }

    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m augury.bench.forward", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="embedded name, directory or GGUF file")
    parser.add_argument("--head", type=Path, action="append", default=[], help="draft head; repeatable")
    parser.add_argument("--lanes", choices=LANES, action="append", default=[], help="in these too; repeatable")
    given = parser.parse_args()
    main(given.model, given.head, given.lanes)
