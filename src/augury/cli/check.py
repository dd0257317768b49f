"""``augury check``: proves on this machine that drafted answers are the plain ones, bit for bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from augury.bench.prompts import read
from augury.cli.flags import Guessing, Loading
from augury.cli.terminal import note
from augury.errors import ContextTooLong, InputError
from augury.trace.explain import legible

if TYPE_CHECKING:
    from augury.conformance.identity import Difference, Run, Verdict
    from augury.engine.engine import Engine
    from augury.sampling import Sampling

DIFFERS = 1
"""Exit code when an answer is not the plain one, or when nothing was compared."""

_BUILTIN = (
    ["List the seven days of the week, then list them again in reverse order."],
    ["Explain in three sentences why the sky is blue."],
    ["Write a Python function that returns the n-th Fibonacci number, then write it again with type hints."],
    ["Repeat this sentence four times: The quick brown fox jumps over the lazy dog."],
    ["今天天气很好，我想去公园散步玩耍。请把这句话重复三遍。"],
    ["Correct the spelling and give back the whole text: The wether was realy nice, so we whent to the beech."],
    ['Turn into JSON: name Ada, born 1815; name Alan, born 1912; name Grace, born 1906.'],
    ["What is 12 times 12? Show each step.", "Now the same for 13 times 13."],
)  # fmt: skip


def check(
    loading: Loading,
    guessing: Guessing,
    prompts: Annotated[list[str] | None, Argument(help="Prompts; a built-in handful when there are none.")] = None,
    file: Annotated[Path | None, Option(help="Prompts, one a line: text, or JSONL with prompt or turns.")] = None,
    max_tokens: Annotated[int, Option(help="Tokens of each answer at most.", min=1)] = 64,
    temperature: Annotated[float, Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, Option(help="Of the sampled answers.")] = 0,
    limit: Annotated[int | None, Option(help="Check only the first N prompts.", min=1, show_default="all")] = None,
    budget: Annotated[
        bool, Option("--budget", help="Verify what the budget picks, as in use, not every guess.")
    ] = False,
) -> None:
    """Answer prompts plainly and drafted and compare tokens and the bits of the target's logits.

    Exit code 0: no difference that the target does not allow. 1: a BUG, or nothing to compare.
    """
    if prompts and file is not None:
        raise InputError("prompts and --file exclude each other; give one of them")
    asked = [[p] for p in prompts or []] or ([[p.text, *p.later] for p in read(file)] if file else _BUILTIN)
    if guessing.drafters == "none":
        raise InputError("without a drafter there is nothing to compare; name some with --drafters")
    from augury.conformance.identity import check_rule, watched
    from augury.sampling import Sampling

    sampling = Sampling(temperature=temperature, seed=seed)
    check_rule(guessing.acceptance, sampling)
    with watched(loading.engine(guessing.drafters, guessing.acceptance, measure=budget), budget) as engine:
        report = _Report(engine)
        for number, turns in enumerate(asked[:limit], 1):
            report.dialogue(number, turns, sampling, max_tokens)
    raise typer.Exit(report.close())


@dataclass
class _Report:
    """Prints a line for every answer, and what they come to."""

    engine: Engine
    kinds: Counter[str] = field(default_factory=Counter)
    positions: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    skipped: int = 0

    def dialogue(self, number: int, turns: Sequence[str], sampling: Sampling, max_tokens: int) -> None:
        """Check every turn of a dialogue; the plain answers make its history."""
        from augury.conformance.identity import examine

        messages: list[dict[str, object]] = []
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            prompt = self.engine.render(messages) if self.engine.template else turn
            try:
                verdict, plain, drafted = examine(self.engine, prompt, sampling, max_tokens=max_tokens)
            except ContextTooLong as error:
                print(f"{number:>4}  not checked: {error}", flush=True)
                self.skipped += 1
                return
            self._add(number, turn, verdict, drafted)
            messages.append({"role": "assistant", "content": plain.text})

    def close(self) -> int:
        """Print the sum; gives the exit code."""
        info = self.engine.target.info
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.kinds.items())
        skipped = f", {self.skipped} not checked" if self.skipped else ""
        promise = "promises equal bits" if info.exact else "does not promise equal bits"
        print(f"{self.kinds.total()} answers: {kinds or 'none compared'}{skipped}")
        print(
            f"{self.positions} positions compared, {self.accepted} of {self.drafted} draft tokens accepted, "
            f"{1 + self.accepted / max(self.steps, 1):.3f} tokens a step; "
            f"{info.runner} {promise}"
        )
        if self.drafted == 0:
            note("augury: no draft token was verified, so nothing was proved; try longer answers or other drafters")
            return DIFFERS
        return DIFFERS if self.kinds["BUG"] else 0

    def _add(self, number: int, turn: str, verdict: Verdict, drafted: Run) -> None:
        self.kinds[verdict.kind] += 1
        self.positions += verdict.positions
        self.drafted += drafted.drafted
        self.accepted += drafted.accepted
        self.steps += drafted.steps
        start = " ".join(turn.split())[:40]
        print(
            f"{number:>4}  {verdict.kind:<14}  {len(drafted.tokens):>4} tokens, "
            f"{drafted.accepted:>4} of {drafted.drafted:>4} drafts accepted  {start}",
            flush=True,
        )
        if verdict.first is not None:
            print(f"      {verdict.why}; {self._where(verdict.first)}", flush=True)

    def _where(self, first: Difference) -> str:
        assert self.engine.tokenizer is not None
        token = self.engine.tokenizer.token_bytes
        plain, drafted = ("the end" if t is None else f"{legible(token(t))} ({t})" for t in first.tokens)
        if None in first.tokens:
            return f"position {first.position}: plain {plain}, drafted {drafted}"
        if first.tokens[0] == first.tokens[1]:
            logits = f"{first.plain[0]!r} plain, {first.drafted[0]!r} drafted"
            return f"first at position {first.position}, {plain}: logit {logits}"
        return (
            f"position {first.position}: plain chose {plain}, drafted {drafted}; their logits are "
            f"{first.plain[0]!r} and {first.plain[1]!r} plain, {first.drafted[0]!r} and {first.drafted[1]!r} drafted; "
            f"gap {first.gap:.3g}"
        )
