"""Measurements that were made up, so that their figures are known."""

import numpy as np

from augury.bench.paired import Answer, Pair
from augury.bench.prompts import Prompt
from augury.bench.together import Together, Wave
from augury.models.target import TargetInfo
from augury.record import RequestRecord, StepRecord
from augury.trace.figures import figures
from augury.tree import DraftTree, Path

INFO = TargetInfo("toy", "llama", "none", "bfloat16", 10, 100, 4, 1, 100, 200, True, True)


def step(ms: float, drafted: int = 0, accepted: int = 0, source: int = 0) -> StepRecord:
    """A step that spends a tenth on drafting when it drafts, and emits ``accepted + 1`` tokens."""
    tree = DraftTree.chain(list(range(drafted)), np.ones(drafted, np.float32), source)
    draft_ms = 0.1 * ms if drafted else 0.0
    return StepRecord(
        position=0, root=0, tree=tree, path=Path(tuple(range(accepted)), 9), emitted=(*range(accepted), 9),
        proposals=(), reason=None, rows=drafted + 1, draft_ms=draft_ms, verify_ms=0.8 * ms, accept_ms=0.0,
        commit_ms=0.0, rest_ms=0.2 * ms - draft_ms,
    )  # fmt: skip


def answer(*steps: StepRecord, prefill_ms: float = 5.0, untimed_ms: float = 1.0) -> Answer:
    record = RequestRecord(3, ("suffix", "prediction"), prefill_ms=prefill_ms, steps=list(steps), finish="length")
    tokens = tuple(t for s in steps for t in s.emitted)
    return Answer(tokens, prefill_ms + record.decode_ms + untimed_ms, figures(record))


def pair(prompt: str, kind: str, turn: int, plain_ms: float, drafted_ms: float, same: bool | None = True) -> Pair:
    """Four tokens: plainly in four steps, drafted in two, of whose four draft tokens two are accepted."""
    plain = answer(*[step(plain_ms)] * 4)
    drafted = answer(step(2 * drafted_ms, drafted=2, accepted=2), step(2 * drafted_ms, drafted=2, source=1))
    return Pair(Prompt(prompt, kind, "x"), turn, plain, drafted, same)


def together(size: int, number: int, turn: int, ratio: float, same: bool | None = True) -> Together:
    """A group whose plain answers take 40 ms and whose drafted ones take 40 / ratio, after prompts of 5 ms each."""

    def wave(one: Answer, decode_ms: float) -> Wave:
        return Wave((one.tokens,) * size, 5.0 * size + decode_ms, (one.figures,) * size)

    one = pair("a", "qa", turn, 10.0, 10.0 / ratio)
    prompts = tuple(f"p{size * number + i}" for i in range(size))
    same_all = None if same is None else (same,) * size
    return Together(size, number, turn, prompts, wave(one.plain, 40.0), wave(one.drafted, 40.0 / ratio), same_all)
