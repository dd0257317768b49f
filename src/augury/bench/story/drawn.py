"""The pictures and the worked examples of the story, from its trace and from kept measurements: functions of files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from augury.bench.document import measured, read
from augury.bench.story.cache import cache
from augury.bench.story.runs import STORY
from augury.budget import Costs
from augury.engine.tables import CostTable
from augury.errors import InputError
from augury.picture.bars import Bar, bars
from augury.picture.plot import lines
from augury.picture.ribbon import pieces, ribbon
from augury.picture.sums import sums
from augury.picture.timeline import Run, timeline
from augury.picture.tree import tree
from augury.picture.words import guesses, heading, milliseconds
from augury.trace.events import Event, accepted
from augury.trace.log import TraceFile

TRACE, COSTS, TOLD = "how-it-works-trace.jsonl", "how-it-works-costs.json", "how-it-works.txt"
"""Files beside the other kept results: the answers, what forwards cost, and the worked examples."""

_FORWARD = "forward-avx2.txt"
_KINDS = "auto.json"


@dataclass(frozen=True)
class Answer:
    """One answer of the story: its events."""

    begin: Event
    steps: Sequence[Event]

    @property
    def drafters(self) -> Sequence[str]:
        """Names by index."""
        found: Sequence[str] = self.begin["drafters"]
        return found

    @property
    def tokens(self) -> list[int]:
        """Of the answer."""
        return [token for step in self.steps for token in step["emitted"]]

    def simplest(self, fits: Callable[[Event], bool]) -> Event:
        """Of the steps of a kind the first of those with the fewest guesses.

        Raises:
            InputError: there is none: another trace is needed, or another rule of choice.
        """
        found = [step for step in self.steps if fits(step)]
        if not found:
            raise InputError(f"no step of the answer {self.begin['label']!r} is of the kind that the page needs")
        return min(found, key=lambda step: len(step["tokens"]))


def answers(trace: Path) -> dict[str, Answer]:
    """The answers of a trace, by label."""
    begun: dict[int, Answer] = {}
    steps: dict[int, list[Event]] = {}
    for event in TraceFile(trace):
        if event["kind"] == "begin":
            steps[event["id"]] = []
            begun[event["id"]] = Answer(event, steps[event["id"]])
        elif event["kind"] == "step":
            steps[event["id"]].append(event)
    return {one.begin["label"]: one for one in begun.values()}


def pictures(results: Path) -> dict[str, str]:
    """Name to SVG, from the folder of kept results."""
    found = answers(results / TRACE)
    plain, drafted = found["plain"], found["drafted"]
    chosen = examples(found)
    drawn = {
        "forward": _forward(results / _FORWARD),
        "race": timeline(
            "One prompt, plainly and drafted", [Run("plain", plain.steps), Run("drafted", drafted.steps)], tokens=64
        ),
        "ribbon": ribbon("Who guessed what", list(pieces(drafted.steps)), drafted.drafters),
        "choice": _choice(found["every guess"], CostTable.read(results / COSTS).costs),
        "cache": cache(chosen["hit"][1]),
        "kinds": _kinds(results / _KINDS),
    }
    return drawn | {name: tree(step, answer.drafters) for name, (answer, step) in chosen.items()}


def examples(found: Mapping[str, Answer]) -> dict[str, tuple[Answer, Event]]:
    """The steps that the page tells of, by the names of their pictures."""
    drafted, coupled = found["drafted"], found["coupled, sampled"]
    ratio, both = found["rejection, sampled"], found["rejection, two drafters"]
    chosen = {
        # Two drafters in one tree, all of whose guesses that count are right.
        "hit": (drafted, drafted.simplest(lambda s: s["own"] == "bonus" and len({*s["source"]}) > 1)),
        # Some are right, then all are wrong.
        "miss": (coupled, coupled.simplest(lambda s: s["own"] == "correction" and accepted(s) > 0 and _forks(s))),
        # A sampled guess falls behind others that stay.
        "rejection": (ratio, ratio.simplest(lambda s: s["own"] == "correction" and accepted(s) > 1)),
        # A copied guess falls, and a sampled one beside it is judged by what is left of p.
        "residual": (both, both.simplest(lambda s: _second(s, both.drafters))),
    }
    # A guess that the target thinks likely, and that its draw passes by.
    likely = coupled.simplest(
        lambda s: any(g.fate == "rejected" and (g.p or 0.0) > 0.3 for g in guesses(s, coupled.drafters))
    )
    return chosen | {"likely": (coupled, likely)}


def _forks(step: Event) -> bool:
    """Whether several drafters guess at the root."""
    return len({source for source, parent in zip(step["source"], step["parents"], strict=True) if parent < 0}) > 1


def _second(step: Event, drafters: Sequence[str]) -> bool:
    """Whether at the root a guess that was not sampled fell with some p, and a sampled one was kept."""
    found = [g for g, parent in zip(guesses(step, drafters), step["parents"], strict=True) if parent < 0]
    fell = any(g.q is None and g.fate == "rejected" and (g.p or 0.0) > 0.05 for g in found)
    return fell and any(g.q is not None and g.fate == "accepted" for g in found)


def told(results: Path) -> str:
    """The worked examples, as text."""
    found = answers(results / TRACE)
    parts = list(_facts(found))
    for name, (answer, step) in examples(found).items():
        parts += ["", f"{name} ({answer.begin['label']}): {heading(step)}", *sums(step, answer.begin)]
    parts += ["", *_chosen(found["every guess"], CostTable.read(results / COSTS).costs)]
    return "\n".join(parts) + "\n"


def _facts(found: Mapping[str, Answer]) -> Iterator[str]:
    """Every answer in a line, and whether those of one prompt, law and seed are the same tokens."""
    timed = {telling.label for telling in STORY if telling.timed}
    for label, one in found.items():
        took = _ended(one.steps[-1]) - one.steps[0]["at"]
        behind = f", {took:.1f} ms behind the prompt" if label in timed else ""
        kept, tried = sum(accepted(step) for step in one.steps), sum(len(step["tokens"]) for step in one.steps)
        yield (
            f"{label}: {len(one.tokens)} tokens in {len(one.steps)} steps{behind}; {kept} of {tried} guesses accepted"
        )
    for plain, drafted in (("plain", "drafted"), ("plain, sampled", "coupled, sampled")):
        same = "the same tokens" if found[plain].tokens == found[drafted].tokens else "NOT the same tokens"
        yield f"{plain} and {drafted}: {same}"


def _ended(step: Event) -> float:
    return float(step["at"]) + milliseconds(step)


# ---- what is worth verifying --------------------------------------------------------------------------------------


def _rates(step: Event, costs: Costs) -> list[float]:
    """Tokens a second to be expected of the n likeliest guesses of a step, for n from 0."""
    survival = np.sort(np.asarray(step["survival"], np.float64))[::-1]
    tokens = 1.0 + np.concatenate([[0.0], np.cumsum(survival)])
    rows = np.arange(1, len(survival) + 2)
    ms = costs.step(rows, rows.astype(np.float64) * step["position"])
    return [float(rate) for rate in 1e3 * tokens / ms]


def _largest(answer: Answer) -> Sequence[Event]:
    """Steps with many guesses: the one thought likeliest to bring much, and the one thought least so."""
    many = [step for step in answer.steps if len(step["tokens"]) >= 16]
    if not many:
        raise InputError(f"no step of the answer {answer.begin['label']!r} has guesses enough for the page")
    by_hope = sorted(many, key=lambda step: sum(step["survival"]))
    return by_hope[-1], by_hope[0]


def _choice(answer: Answer, costs: Costs) -> str:
    """What each number of guesses would bring, of two steps."""
    series = {
        f"step {step['n'] + 1}, {len(step['tokens'])} guesses": [
            (float(n), rate) for n, rate in enumerate(_rates(step, costs))
        ]
        for step in _largest(answer)
    }
    return lines("Tokens a second to be expected", "guesses verified, the likeliest first", "tokens a second", series)


def _chosen(answer: Answer, costs: Costs) -> Iterator[str]:
    """The best number of guesses of these steps."""
    for step in _largest(answer):
        rates = _rates(step, costs)
        best = int(np.argmax(rates))
        yield (
            f"choice, step {step['n'] + 1}: plain {rates[0]:.1f} tokens a second, best {best} of {len(step['tokens'])} "
            f"guesses with {rates[best]:.1f}, all of them {rates[-1]:.1f}"
        )


# ---- kept measurements --------------------------------------------------------------------------------------------


def _forward(path: Path) -> str:
    """A forward by rows, beside what reading and multiplying alone take."""
    text = path.read_text("utf-8")
    times = [
        (float(rows), float(ms)) for rows, ms in re.findall(r"^ +(\d+) +([\d.]+) +[\d.]+ +[\d.]+  rows", text, re.M)
    ]
    floor = re.search(r"floor: ([\d.]+) ms to read .* and ([\d.]+) ms a row", text)
    if not times or floor is None:
        raise InputError(f"{path} is no table of python -m augury.bench.forward")
    reading, row = float(floor[1]), float(floor[2])
    series = {
        "a forward, measured": times,
        "reading the weights once": [(rows, reading) for rows, _ in times],
        "multiplying the rows": [(rows, row * rows) for rows, _ in times],
    }
    return lines("What a forward takes", "tokens in one forward", "milliseconds", series)


def _kinds(path: Path) -> str:
    """The measured speed-up by kind of prompt."""
    (run,) = measured(read(path))
    rows = sorted(run.summary.kinds, key=lambda row: -row.speedup)
    return bars("Speed-up by kind of prompt", "times plain decoding", [Bar(r.kind, r.speedup) for r in rows], line=1.0)


def write(results: Path, folder: Path) -> Iterable[Path]:
    """Write the pictures and the worked examples; gives what was written."""
    folder.mkdir(exist_ok=True)
    for name, svg in pictures(results).items():
        path = folder / f"{name}.svg"
        path.write_text(svg + "\n", "utf-8")
        yield path
    path = results / TOLD
    path.write_text(told(results), "utf-8")
    yield path
