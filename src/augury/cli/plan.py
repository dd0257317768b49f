"""``augury plan``: which drafter, which length, what gain, for hardware one need not have."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from augury.bench.plan.hardware import PRESETS
from augury.cli.flags import Running
from augury.cli.terminal import check_output, progress, show
from augury.errors import InputError

if TYPE_CHECKING:
    from augury.bench.plan.drafts import Draft
    from augury.bench.plan.gain import Guesser, Verify
    from augury.bench.plan.measured import Seen
    from augury.bench.plan.report import Paper
    from augury.bench.plan.roofline import Hardware, Shape

_CONTEXT = 1024
_MOST_REQUESTS = 65536
_MOST_CONTEXT = 1 << 24


@dataclass(frozen=True)
class Machine:
    """What it runs on."""

    hardware: Annotated[
        str | None, Option(metavar="NAME", help=f"One of {', '.join(PRESETS)}.", rich_help_panel="Hardware")
    ] = None
    here: Annotated[
        bool, Option("--here", help="This machine: its bandwidth and its rate, measured.", rich_help_panel="Hardware")
    ] = False
    bandwidth: Annotated[float | None, Option(metavar="GB/s", help="Of its memory.", rich_help_panel="Hardware")] = None
    flops: Annotated[
        float | None,
        Option(metavar="TFLOP/s", help="Dense, in the precision asked for.", rich_help_panel="Hardware"),
    ] = None
    memory: Annotated[float | None, Option(metavar="GB", help="It holds.", rich_help_panel="Hardware")] = None
    overhead: Annotated[
        float | None,
        Option(metavar="MS", help="Of every forward, on top.", show_default="0", rich_help_panel="Hardware"),
    ] = None

    def found(self, threads: int | None) -> Hardware:
        """The hardware meant.

        Raises:
            InputError: none, or more than one, or a figure that no hardware has.
        """
        from augury.bench.plan.hardware import here, preset
        from augury.bench.plan.roofline import Hardware

        for name, least in (("bandwidth", False), ("flops", False), ("memory", False), ("overhead", True)):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and (value > 0.0 or (least and value == 0.0))):
                floor = "0 or more" if least else "above 0"
                near = "0" if least else "what --hardware H100 has"
                raise InputError(f"--{name} is {value:g}; it must be a number {floor}, the nearest choice is {near}")
        if self.hardware is not None and self.here:
            raise InputError(f"--hardware {self.hardware} and --here exclude each other; give one of them")
        if self.hardware is not None:
            base = preset(self.hardware)
        elif self.here:
            base = here(threads)
        elif self.bandwidth is not None and self.flops is not None:
            base = Hardware("given hardware", self.bandwidth, self.flops)
        else:
            raise InputError(
                "say on what: --hardware with one of "
                f"{', '.join(PRESETS)}; or --bandwidth and --flops; or --here; or --measure with a model"
            )
        return Hardware(
            base.name,
            base.bandwidth if self.bandwidth is None else self.bandwidth,
            base.flops if self.flops is None else self.flops,
            base.flops8 if self.flops is None else None,  # one rate was given, so it is that of every precision
            base.memory if self.memory is None else self.memory,
            base.overhead if self.overhead is None else self.overhead,
        )


def plan(
    running: Running,
    machine: Machine,
    params: Annotated[
        str | None, Option(metavar="SIZE", help="Parameters of the target, as in 70B.", rich_help_panel="Target")
    ] = None,
    model: Annotated[
        str | None,
        Option(help="Embedded name, directory or GGUF file, in place of --params.", rich_help_panel="Target"),
    ] = None,
    bits: Annotated[
        str | None,
        Option(metavar="BITS", help="16, 8, 4, bf16, fp8, int8 or int4.", show_default="16", rich_help_panel="Target"),
    ] = None,
    kv_bytes: Annotated[
        float | None,
        Option(help="Bytes of cache a token.", show_default="as a Llama of this size", rich_help_panel="Target"),
    ] = None,
    measure: Annotated[
        bool, Option("--measure", help="Load --model and time it, in place of a roofline.", rich_help_panel="Hardware")
    ] = False,
    draft: Annotated[
        list[str] | None,
        Option(
            metavar="DRAFT[@RATES]",
            help="8B, 8B:int4, a model's name, self:int4, head:0.3B, block:0.3B or copy; repeatable.",
            rich_help_panel="Drafting",
        ),
    ] = None,
    acceptance: Annotated[
        str | None,
        Option(
            metavar="RATES",
            help="How often a guess is right when those before it were; by depth, the last goes on: 0.8,0.7.",
            rich_help_panel="Drafting",
        ),
    ] = None,
    longest: Annotated[int, Option(help="Draft length tried.", min=1, max=64, rich_help_panel="Drafting")] = 16,
    bench: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Result of `augury bench --json`: its acceptance, and its speed-up beside the predicted.",
            rich_help_panel="Drafting",
        ),
    ] = None,
    batch: Annotated[str, Option(help="Comma list of requests that decode together.")] = "1,2,4,8,16,32,64,128,256",
    context: Annotated[
        int | None,
        Option(help="Tokens that each request holds.", min=0, max=_MOST_CONTEXT, show_default=str(_CONTEXT)),
    ] = None,
    markdown: Annotated[bool, Option("--markdown", help="Tables as Markdown.", rich_help_panel="Output")] = False,
    json_out: Annotated[
        Path | None, Option("--json", help="Write everything reckoned to a file.", rich_help_panel="Output")
    ] = None,
    html: Annotated[Path | None, Option(help="Write a page with plots to a file.", rich_help_panel="Output")] = None,
) -> None:
    """Reckon which drafter and which length would pay, and how much, by batch size.

    Nothing is loaded or timed unless --measure or --here asks for it.
    """
    from augury.bench.plan import report as plan_report
    from augury.bench.plan.drafts import acceptances, read_draft
    from augury.bench.plan.gain import constant_acceptance, outlook
    from augury.bench.plan.measured import read_seen

    for flag, file in (("--json", json_out), ("--html", html)):
        check_output(flag, file)
    drafts = [read_draft(one) for one in draft or []]
    _check(drafts, bench)
    batches = _batches(batch)
    seen = None if bench is None else read_seen(bench)
    chances = None if acceptance is None else acceptances(acceptance, "--acceptance")
    if chances is None and seen is not None:
        chances = (constant_acceptance(seen.tokens, seen.length),)
    rates = [_rates(one, chances) for one in drafts]
    tokens = context if context is not None else seen.context if seen is not None else _CONTEXT
    if measure:
        _refuse(machine, params, bits, kv_bytes)
        verify, guessers, heading = _timed(running, model, drafts, rates, tokens, seen)
        paper = None
    else:
        _unused(running, machine.here)
        verify, guessers, paper = _reckoned(
            running, machine, _target(params, model, bits, kv_bytes), drafts, rates, tokens
        )
        heading = plan_report.title(paper)
    outlooks = [outlook(verify, guessers, size, longest) for size in batches]
    said = plan_report.notes(outlooks, paper, len(drafts) > 1 and sum(d.acceptance is None for d in drafts) > 1)
    if seen is not None:
        said += plan_report.against(seen, verify, guessers[0], measure or machine.here)
    tables = [plan_report.by_batch("", outlooks, paper)]
    tables += [plan_report.by_drafter(outlooks)] if len(drafts) > 1 else []
    print(heading)
    for one in tables:
        show(one, markdown)
    print("\n".join(said), flush=True)
    if json_out is not None:
        arguments = {
            **asdict(running), **asdict(machine), "params": params, "model": model, "bits": bits, "kv_bytes": kv_bytes,
            "measure": measure, "draft": draft, "acceptance": acceptance, "longest": longest,
            "bench": bench and str(bench), "batch": batches, "context": tokens,
        }  # fmt: skip
        json_out.write_text(json.dumps(plan_report.document(arguments, outlooks, paper, said), indent=1), "utf-8")
    if html is not None:
        html.write_text(plan_report.page(heading, tables, outlooks, said), "utf-8")


# ---- what was asked for -------------------------------------------------------------------------------------------


def _check(drafts: Sequence[Draft], bench: Path | None) -> None:
    """Refuse drafters that cannot be compared."""
    if not drafts:
        raise InputError("say who drafts: --draft 8B, a model's name, self:int4, head:0.3B, block:0.3B or copy")
    names = [one.name for one in drafts]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"--draft {twice} is given twice; give it once")
    if bench is not None and len(drafts) > 1:
        raise InputError(f"--bench {bench} is of one run, and there are {len(drafts)} drafts; give the one it used")


def _rates(draft: Draft, shared: tuple[float, ...] | None) -> tuple[float, ...]:
    """A drafter's own acceptance, or the one given for all."""
    found = draft.acceptance if draft.acceptance is not None else shared
    if found is None:
        raise InputError(
            f"say how often a guess of --draft {draft.name} is right: --acceptance 0.8, or behind it as in "
            f"--draft {draft.name}@0.8; augury bench measures it, and --bench reads what it found"
        )
    return found


def _batches(text: str) -> list[int]:
    found = []
    for one in text.split(","):
        try:
            size = int(one)
        except ValueError:
            raise InputError(f"--batch {text!r} is not a comma list of whole numbers, as in 1,8,64") from None
        if not 1 <= size <= _MOST_REQUESTS:
            near = min(max(size, 1), _MOST_REQUESTS)
            raise InputError(f"--batch has {size}; it must be 1 to {_MOST_REQUESTS}, and the nearest is {near}")
        found.append(size)
    return list(dict.fromkeys(found))


def _target(params: str | None, model: str | None, bits: str | None, kv_bytes: float | None) -> Shape:
    """The target's shape."""
    from augury.bench.plan.sizes import amount, is_amount, of_model, of_size, precision

    if (params is None) == (model is None):
        both = (
            "exclude each other; give one of them"
            if params is not None
            else "are both missing; give one, as in --params 70B"
        )
        raise InputError(f"--params and --model {both}")
    kept = precision(bits or "16", "--bits")
    if params is not None:
        hint = "; a model whose files are here is given by --model"
        shape = of_size(params.strip(), amount(params, "--params", hint), kept)
    else:
        if is_amount(model or "") and not Path(model or "").exists():
            raise InputError(f"--model {model} is a size, and --model takes a model whose files are here; "
                             f"give --params {model}")  # fmt: skip
        shape = of_model(model or "", kept)
    if kv_bytes is None:
        return shape
    if not 0.0 <= kv_bytes < math.inf:
        raise InputError(f"--kv-bytes is {kv_bytes:g}; it must be 0 or more, and a model of this size has about "
                         f"{shape.kv_bytes:.0f}")  # fmt: skip
    return replace(shape, kv_bytes=kv_bytes)


def _unused(running: Running, here: bool) -> None:
    """Refuse ways of running where nothing runs."""
    for one in fields(running):
        if getattr(running, one.name) is not None and not (here and one.name == "threads"):
            more = " or --here" if one.name == "threads" else ""
            raise InputError(f"--{one.name.replace('_', '-')} needs --measure{more}: without it nothing is loaded")


def _refuse(machine: Machine, params: str | None, bits: str | None, kv_bytes: float | None) -> None:
    """Refuse what a measurement makes void."""
    given = {**asdict(machine), "params": params, "bits": bits, "kv_bytes": kv_bytes}
    for name, value in given.items():
        if value not in (None, False):
            raise InputError(
                f"--measure times this machine, so --{name.replace('_', '-')} has no place; leave one of them out"
            )


# ---- where costs come from ----------------------------------------------------------------------------------------


def _reckoned(
    running: Running,
    machine: Machine,
    target: Shape,
    drafts: Sequence[Draft],
    rates: Sequence[tuple[float, ...]],
    context: int,
) -> tuple[Verify, list[Guesser], Paper]:
    """Costs by roofline."""
    from augury.bench.plan.drafts import draft_ms
    from augury.bench.plan.gain import Guesser
    from augury.bench.plan.report import Paper
    from augury.bench.plan.roofline import forward

    made = {one.name: one.shape(target) for one in drafts}  # refuses what cannot be, before anything is measured
    hardware = machine.found(running.threads)

    def verify(rows: int, batch: int) -> float:
        return forward(hardware, target, rows, batch, context).ms

    guessers = [
        Guesser(one.name, chances, draft_ms(one, made[one.name], hardware, context))
        for one, chances in zip(drafts, rates, strict=True)
    ]
    return verify, guessers, Paper(hardware, target, drafts, context)


def _timed(
    running: Running,
    model: str | None,
    drafts: Sequence[Draft],
    rates: Sequence[tuple[float, ...]],
    context: int,
    seen: Seen | None,
) -> tuple[Verify, list[Guesser], str]:
    """Costs measured on a loaded target; and what was measured, in one line."""
    from augury.bench.plan.gain import Guesser
    from augury.bench.plan.measured import REPEATS, check, draft_ms, verify_ms
    from augury.bench.plan.sizes import name_of
    from augury.engine.costs import profile

    if model is None:
        raise InputError("--measure needs a model to load: --model smollm2-135m, a directory or a GGUF file")
    for one in drafts:
        check(one)
    if seen is not None and seen.model not in (model, name_of(model)):
        raise InputError(f"--bench measured {seen.model}, and --model is {model}; give the same")
    engine = running.load(model, "none", "coupled", measure=False)
    target = engine.target
    if not 0 < context < target.info.context:
        near = min(max(context, 1), target.info.context - 1)
        raise InputError(
            f"--context {context} is not between 1 and {target.info.context - 1}, what the loaded model holds; the "
            f"nearest is {near}"
        )
    with progress() as told:
        say = (lambda share: told("measuring costs", share)) if told else None
        costs = profile(target, repeats=REPEATS, progress=say).costs
    guessers = [
        Guesser(one.name, chances, draft_ms(one, engine, context, costs, running.threads))
        for one, chances in zip(drafts, rates, strict=True)
    ]
    return verify_ms(costs, context), guessers, f"{target.info.name}, {target.info.runner}, measured, context {context}"
