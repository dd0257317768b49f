"""The rule against fixed settings: each drafter at each length, and chains of drafters of which the first guesses.

    python -m augury.bench.fixed --limit 1 --max-tokens 64

A fixed setting guesses as many as it is told and verifies all of them, at every step: what other systems are told by
an option, here it is a measuring aid. Every few settings a prompt is answered plainly and by the rule again, for a
machine's speed drifts while all of them have their turn. The last row is what somebody would have had who knew
beforehand which setting is the best for each kind of prompt. With several rounds it is chosen by all rounds but one and
measured in that one, each in its turn: the best of many measurements is also the luckiest of them, and with one round
its luck is counted too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from augury.api import automatic
from augury.bench.paired import Pair, arms
from augury.bench.prompts import Prompt, own, read, select
from augury.bench.ratios import geometric_mean, interval
from augury.bench.report import by_prompt, commit, machine, table, versions
from augury.drafters import brought, make
from augury.drafters.drafter import Drafter, Observation, View
from augury.engine.engine import Engine
from augury.errors import AuguryError, InputError
from augury.sampling import Sampling
from augury.tree import DraftTree

DRAFTERS = ("ngram", "suffix", "recycle", "lookahead", "self", "eagle")
LENGTHS = (2, 4, 8, 16)
CHAINS = (("prediction", "suffix", "self"), ("prediction", "suffix", "eagle"), ("prediction", "ngram", "eagle"))
_USED = {*DRAFTERS, *(name for chain in CHAINS for name in chain)}

TOGETHER = 6
"""Settings that share a plain answer, and stand beside an answer by the rule."""

RULE = "the rule"
RULE_OF_ALL = "the rule over all drafters"
HINDSIGHT = "best setting of each kind"


class First(Drafter):
    """Of several drafters the first that guesses anything, up to a number of nodes.

    Args:
        drafters: in order of preference.
        nodes: that are proposed at most.
    """

    def __init__(self, drafters: Sequence[Drafter], nodes: int) -> None:
        self.needs_hidden = any(drafter.needs_hidden for drafter in drafters)
        self.reads_prediction = any(drafter.reads_prediction for drafter in drafters)
        self._drafters, self._nodes = drafters, nodes

    def open(self, view: View) -> None:
        """Begin a request with all of them."""
        for drafter in self._drafters:
            drafter.open(view)

    def propose(self, view: View, limit: int) -> DraftTree:
        """What the first of them guesses that guesses at all."""
        for drafter in self._drafters:
            if len(tree := drafter.propose(view, min(limit, self._nodes))):
                return tree
        return DraftTree.empty()

    def observe(self, view: View, seen: Observation) -> None:
        """Show all of them what came."""
        for drafter in self._drafters:
            drafter.observe(view, seen)

    def close(self, view: View) -> None:
        """Let all of them forget the request."""
        for drafter in self._drafters:
            drafter.close(view)


@dataclass(frozen=True)
class Standing:
    """One setting over all prompts.

    Attributes:
        setting: in words.
        speedup: geometric mean over prompts of the median of a prompt's paired ratios.
        interval: its 95 % bootstrap interval; None with fewer than three prompts.
        worst: the least of a prompt.
        by_kind: the same mean over the prompts of each kind.
    """

    setting: str
    speedup: float
    interval: tuple[float, float] | None
    worst: float
    by_kind: dict[str, float]


def settings(engine: Engine, only: str = "") -> list[tuple[str, Drafter]]:
    """Every fixed setting that the drafters of an engine allow and whose name has ``only`` in it, or one of what it
    parts by ``|``; drafters are made anew, as with costs they stop early.

    Raises:
        InputError: none has it.
    """
    known = dict.fromkeys([*(name for name, _ in engine.parts.drafters), *brought(engine.target.info)])
    there = {
        name: make(name, target=engine.target, tokenizer=engine.tokenizer, slots=2) for name in known if name in _USED
    }
    singles = [(name,) for name in DRAFTERS]
    made: list[tuple[str, Drafter]] = [
        (f"{' > '.join(names)}, {nodes}", First([there[name] for name in names], nodes))
        for names in (*singles, *CHAINS)
        if all(name in there for name in names)
        for nodes in LENGTHS
    ]
    if chosen := [(name, first) for name, first in made if any(part in name for part in only.split("|"))]:
        return chosen
    raise InputError(f"no setting has {only!r} in its name; those there are: {'; '.join(name for name, _ in made)}")


def measure(
    rule: Engine, prompts: Sequence[Prompt], *, max_tokens: int, rounds: int, only: str = ""
) -> Iterator[dict[str, list[Pair]]]:
    """Pairs of the rule and of every setting, greedy; gives after every prompt what there is.

    Args:
        rule: an engine with a table of costs; settings are made of its drafters, and it must be free. It is measured
            with the drafters that are asked when nothing is said, and with all that settings are made of.
        prompts: at least one.
        max_tokens: of each answer.
        rounds: how often every prompt is answered each way.
        only: as for ``settings``.
    """
    made = settings(rule, only)
    found: dict[str, list[Pair]] = defaultdict(list)
    rule.close()
    # Without a table of costs all that is guessed is verified.
    fixed = Engine(rule.target, made, tokenizer=rule.tokenizer, template=rule.template, eos_ids=rule.eos_ids)
    there = tuple(name for name, _ in rule.parts.drafters if name in _USED)
    usual = tuple(name for name in automatic(rule.target) if name in there)
    ways: list[tuple[Engine, list[tuple[str, tuple[str, ...]]]]] = []
    for at in range(0, len(made), TOGETHER):
        ways.append((rule, [(RULE, usual), (RULE_OF_ALL, there)]))
        ways.append((fixed, [(name, (name,)) for name, _ in made[at : at + TOGETHER]]))
    answered = [
        arms(engine, prompts, Sampling(), [arm for _, arm in way], max_tokens=max_tokens, rounds=rounds, warm=True)
        for engine, way in ways
    ]
    for one_prompt in zip(*answered, strict=True):
        for (_, way), pairs in zip(ways, one_prompt, strict=True):
            for (name, _), pair in zip(way, pairs, strict=True):
                found[name].append(pair)
        yield found


def standings(found: dict[str, list[Pair]]) -> list[Standing]:
    """The rule first, then the settings from the fastest to the slowest, hindsight at last."""
    rows = {name: _standing(name, pairs) for name, pairs in found.items()}
    ruled = [rows.pop(name) for name in (RULE, RULE_OF_ALL) if name in rows]
    fixed = sorted(rows.values(), key=lambda row: -row.speedup)
    settings = {name: pairs for name, pairs in found.items() if name not in (RULE, RULE_OF_ALL)}
    return [*ruled, *fixed, _standing(HINDSIGHT, hindsight(settings))]


def hindsight(settings: Mapping[str, Sequence[Pair]]) -> list[Pair]:
    """Pairs of each kind's best setting, of each round those of the setting that was the best in the others."""
    turns = {pair.round for pairs in settings.values() for pair in pairs}
    chosen: list[Pair] = []
    for turn in sorted(turns):
        known = {
            name: _standing(name, [pair for pair in pairs if pair.round != turn or len(turns) == 1]).by_kind
            for name, pairs in settings.items()
        }
        for kind in next(iter(known.values())):
            best = max(known, key=lambda name: known[name][kind])
            chosen += [pair for pair in settings[best] if pair.round == turn and pair.prompt.kind == kind]
    return chosen


def _standing(name: str, pairs: Sequence[Pair]) -> Standing:
    each, kinds = by_prompt(pairs), {pair.prompt.id: pair.prompt.kind for pair in pairs}
    by_kind = {
        kind: geometric_mean([ratio for prompt, ratio in each.items() if kinds[prompt] == kind])
        for kind in dict.fromkeys(kinds.values())
    }
    values = [*each.values()]
    return Standing(name, geometric_mean(values), interval(values), min(values), by_kind)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m augury.bench.fixed", description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--file", type=Path, help="prompts, as for augury bench; the project's own without it")
    parser.add_argument("--limit", type=int, help="prompts of each kind")
    parser.add_argument("--only", default="", help="settings that have this in their names, as in: self|suffix, 16")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    try:
        return _run(given)
    except AuguryError as error:
        print(f"augury: {error}", file=sys.stderr)
        return 2


def _run(given: argparse.Namespace) -> int:
    from rich.console import Console

    import augury

    prompts = select(own() if given.file is None else read(given.file), (), given.limit)
    engine = augury.load(given.model, drafters="auto,ngram,recycle,lookahead", max_num_seqs=2)
    found: dict[str, list[Pair]] = {}
    try:
        for found in measure(engine, prompts, max_tokens=given.max_tokens, rounds=given.rounds, only=given.only):
            done = sum(map(len, found.values()))
            print(f"{done} answers, {len({pair.prompt.id for pair in found[RULE]})} prompts", file=sys.stderr)
    except KeyboardInterrupt:
        if not found:
            raise
        print("augury: stopped; this is what there is", file=sys.stderr)
    rows = standings(found)
    asked = len({pair.prompt.id for pair in found[RULE]})
    title = f"{asked} prompts, {given.max_tokens} tokens, {engine.target.info.name}, {engine.target.info.runner}"
    columns = ("setting", "speed-up", "95 %", "worst prompt", "worst kind", "best kind")
    cells = [_cells(row) for row in rows]
    Console().print(table(title, columns, cells))
    different = sum(pair.same is False for pairs in found.values() for pair in pairs)
    print(f"{sum(map(len, found.values())) - different} of {sum(map(len, found.values()))} pairs have the same tokens")
    if given.json:
        document = {
            "machine": machine(), "versions": versions(), "commit": commit(), "arguments": {**vars(given)},
            "standings": [asdict(row) for row in rows],
        }  # fmt: skip
        given.json.write_text(json.dumps(document, indent=1, default=str) + "\n", "utf-8")
    return 1 if different else 0


def _cells(row: Standing) -> list[str]:
    kinds = sorted(row.by_kind.items(), key=lambda one: one[1])
    between = "-" if row.interval is None else "{:.2f} to {:.2f}".format(*row.interval)
    least, most = (f"{kind} {ratio:.2f}" for kind, ratio in (kinds[0], kinds[-1]))
    return [row.setting, f"{row.speedup:.2f}", between, f"{row.worst:.2f}", least, most]


if __name__ == "__main__":
    sys.exit(main())
