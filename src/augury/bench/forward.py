"""What a forward costs, against its floor: ``python -m augury.bench.forward [MODEL]``.

Forwards of several sizes are timed in turn, at one context, nothing committed; the medians are printed with the
bandwidth that reading the weights once amounts to, and, for the compiled forward, where the time goes. The floor is
measured in the same run with the kernel's own registers: what the same threads read, and multiply, at best.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from augury.models.load import load_target
from augury.models.native import NativeForward, floors
from augury.models.runner import Runner
from augury.models.target import Target
from augury.tree import DraftTree

SIZES = (1, 2, 4, 8, 12, 16, 24, 32)
CONTEXT = 256
ROUNDS = 30


def main(model: str = "smollm2-135m") -> None:
    """Print the table."""
    target = load_target(model, max_model_len=1024, max_num_seqs=1).target
    info = target.info
    print(f"{info.name}, {info.runner}, {info.parameters / 1e6:.0f} M weights, context {CONTEXT}, medians of {ROUNDS}")
    slot = target.open()
    target.prefill(slot, np.arange(CONTEXT, dtype=np.int32) % info.vocab_size)
    times: dict[int, list[float]] = {n: [] for n in SIZES}
    phases: dict[int, list[dict[str, float]]] = {n: [] for n in SIZES}
    for _ in range(ROUNDS):
        for rows in SIZES:
            _verify(target, slot, rows)  # what another size left in the caches is not how decoding runs
            times[rows].append(_verify(target, slot, rows))
            if isinstance(target, Runner) and isinstance(target.forward, NativeForward):
                phases[rows].append(target.forward.phases)
    one = float(np.median(times[1]))
    print(f"{'rows':>5} {'ms':>7} {'to 1 row':>9} {'GB/s':>6}  share of phases")
    for rows in SIZES:
        ms = float(np.median(times[rows]))
        shares = ""
        if phases[rows]:
            means = {k: float(np.median([p[k] for p in phases[rows]])) for k in phases[rows][0]}
            shares = "  ".join(f"{k} {v:.2f}" for k, v in means.items())
        print(f"{rows:>5} {ms:>7.2f} {ms / one:>9.2f} {info.weight_bytes / ms / 1e6:>6.1f}  {shares}")
    if isinstance(target, Runner) and isinstance(target.forward, NativeForward):
        read, multiply = floors(target.forward.threads)
        size = info.weight_bytes / 1e6
        print(
            f"floor: {size / read:.2f} ms to read {size:.0f} MB at {read:.1f} GB/s, and "
            f"{size / 2 / multiply:.2f} ms a row to multiply at {multiply:.0f} G/s"
        )


def _verify(target: Target, slot: int, rows: int) -> float:
    tree = DraftTree.chain(np.arange(rows - 1, dtype=np.int32), np.ones(rows - 1, np.float32))
    begin = time.perf_counter()
    target.verify([slot], [0], [tree])
    return 1e3 * (time.perf_counter() - begin)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m augury.bench.forward", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="embedded name, directory or GGUF file")
    main(parser.parse_args().model)
