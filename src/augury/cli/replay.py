"""``augury replay``: what drafters would have brought in recorded conversations, without the model that answered."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from augury.cli.flags import Only
from augury.cli.terminal import answering, check_output, note, show
from augury.drafters import check as check_name
from augury.drafters import split
from augury.errors import InputError

if TYPE_CHECKING:
    from augury.bench.replay.recordings import Log
    from augury.bench.replay.replay import Replayed
    from augury.engine.tables import CostTable
    from augury.models.load import Wording


@dataclass(frozen=True)
class Replaying:
    """Who guesses, in how much of the log."""

    tokenizer: Annotated[
        str | None,
        Option(
            metavar="MODEL",
            help="Reads texts: embedded name, directory, GGUF file or tokenizer.json of the model that answered.",
            show_default="none: ids only",
            rich_help_panel="Log",
        ),
    ] = None
    raw: Annotated[
        bool, Option("--raw", help="Take prompts as they stand: no chat template.", rich_help_panel="Log")
    ] = False
    limit: Annotated[
        int | None, Option(help="Conversations.", min=1, show_default="all", rich_help_panel="Log")
    ] = None  # fmt: skip
    max_tokens: Annotated[
        int | None, Option(help="Tokens of each answer at most.", min=1, show_default="all", rich_help_panel="Log")
    ] = None
    temperature: Annotated[
        float, Option(help="The answers were drawn at; drafters reckon with it.", rich_help_panel="Log")
    ] = 0.0
    drafters: Annotated[
        str,
        Option(
            metavar="LIST",
            help="Comma list of more: memory, prediction, retrieval:INDEX, module:Class, a name with options.",
            rich_help_panel="Drafting",
        ),
    ] = ""
    only: Only = False
    costs: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Cost table of `augury info --model MODEL --costs FILE`: chooses guesses, gives the speed-up.",
            rich_help_panel="Drafting",
        ),
    ] = None


def replay(
    replaying: Replaying,
    log: Annotated[Path, Argument(help="JSONL: messages, texts or ids, a conversation a line; or a trace with text.")],
    markdown: Annotated[bool, Option("--markdown", help="The table as Markdown.", rich_help_panel="Output")] = False,
    json_out: Annotated[
        Path | None, Option("--json", help="Write everything to a file.", rich_help_panel="Output")
    ] = None,
) -> None:
    """Say what each drafter would have brought in recorded answers, and all of them together; no model is loaded."""
    check_output("--json", json_out)
    specs = _specs(replaying)
    from augury.bench.replay import report as replay_report
    from augury.bench.replay.recordings import read
    from augury.engine.tables import CostTable
    from augury.sampling import Sampling

    Sampling(temperature=replaying.temperature)  # refuses a wrong one
    costs = None if replaying.costs is None else CostTable.read(replaying.costs)
    wording = _wording(replaying.tokenizer)
    held = read(log, wording, raw=replaying.raw, limit=replaying.limit, max_tokens=replaying.max_tokens)
    found = _replayed(held, specs, replaying, costs, wording)
    tokens = sum(len(recording.answer) for recording in held.recordings[: found[0].answers])
    title = f"{found[0].answers} answers, {tokens} tokens, of {held.conversations} conversations"
    show(replay_report.by_arm(title, found), markdown)
    print("\n".join([*replay_report.LEGEND, *replay_report.notes(held, costs, found)]), flush=True)
    if json_out is not None:
        arguments = {**asdict(replaying), "log": str(log), "costs": replaying.costs and str(replaying.costs)}
        json_out.write_text(json.dumps(replay_report.whole(arguments, held, costs, found), indent=1), "utf-8")


def _specs(replaying: Replaying) -> list[str]:
    """The drafters to replay; raises for names that are none, and for those that cannot be."""
    named = [spec for spec in split(replaying.drafters) if spec]
    if replaying.only and not named:
        raise InputError("--only replays those of --drafters, and there are none; name some")
    for before, spec in zip(["", *named], named, strict=False):
        if spec == "none":
            raise InputError("the drafter none guesses nothing: the speed-up is against plain decoding anyway")
        check_name(spec, before)
    from augury.bench.replay.replay import check, ready

    check(named)
    return list(dict.fromkeys(named if replaying.only else [*ready(), *named]))


def _wording(model: str | None) -> Wording | None:
    if model is None:
        return None
    from augury.models.load import load_wording

    return load_wording(model)


def _replayed(
    held: Log, specs: list[str], replaying: Replaying, costs: CostTable | None, wording: Wording | None
) -> list[Replayed]:
    """What came of every arm, at least of the first answer."""
    from augury.bench.prompts import Prompt
    from augury.bench.replay.replay import arms, replay

    predicted = any(recording.prediction is not None for recording in held.recordings)
    if not predicted and any(spec.partition(":")[0] == "prediction" for spec in specs):
        raise InputError("the drafter prediction needs predictions, and no line of the log has one; leave it out")
    against = arms(specs)
    found: list[Replayed] = []
    with answering("replay", len(held.recordings) * len(against)) as each:
        try:
            for now in replay(
                held, against, costs.costs if costs else None, temperature=replaying.temperature,
                tokenizer=wording.tokenizer if wording else None,
                eos_ids=wording.eos_ids(held.vocab_size) if wording else (),
                progress=(lambda arm: each(Prompt(arm, arm, arm))) if each else None,
            ):  # fmt: skip
                found = now
        except KeyboardInterrupt:
            if not found:
                raise
            note(f"augury: stopped after {found[0].answers} of {len(held.recordings)} answers; this is what they show")
    return found
