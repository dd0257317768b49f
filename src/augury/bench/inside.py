"""What our drafters bring inside other engines.

    python -m augury.bench.inside transformers [--model MODEL] [--drafters SPECS]...
    python -m augury.bench.inside llamacpp FILE [--drafters SPECS]...
    python -m augury.bench.inside rows FILE [--as KIND]...

The first two answer the benchmark's own prompts greedily: plainly, with the engine's own guesses, with ours; all with
the same weights in one process, in turns. The third times forwards of llama.cpp by rows and says what guessing could
bring there at best. What is for llama.cpp needs llama-cpp-python, and no more of our own packages than numpy.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from augury.bench.prompts import Prompt, own, select
from augury.bench.ratios import geometric_mean, interval, median
from augury.budget import HURDLE, Costs, promise
from augury.errors import InputError
from augury.models.machine import processor
from augury.tree import DraftTree

SIZES = (1, 2, 4, 8, 16)
CONTEXT = 256
REPEATS = 30

SURE = (0.5, 0.7, 0.8, 0.9, 1.0)
"""Chances that a guess is right when the one before it is, for which the table of rows says what guessing brings."""

LOOKUP = 5
"""Tokens that the engines' own prompt lookup guesses, as in ``bench/peers.py``."""


@dataclass(frozen=True)
class Answered:
    """One answer of one arm.

    Attributes:
        tokens: its ids.
        token_ms: milliseconds a token between the first piece and the last; None for an answer of one piece.
        steps: forwards it took, that of the prompt included.
    """

    tokens: tuple[int, ...]
    token_ms: float | None
    steps: int


Clock = Callable[[], float]
"""Seconds: of the wall, or of the processor for a machine that runs other things too, which is fair for one thread."""

CLOCKS: Mapping[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}

Ask = Callable[[Prompt, list[int], int], Answered]
"""Answers a prompt, its ids, with so many tokens at most."""


class Watch:
    """Notes when which tokens came."""

    def __init__(self, clock: Clock) -> None:
        self.tokens: list[int] = []
        self._clock = clock
        self._stamps: list[tuple[float, int]] = []

    def take(self, tokens: Sequence[int]) -> None:
        """The next tokens of the answer."""
        self.tokens += tokens
        self._stamps.append((1e3 * self._clock(), len(self.tokens)))

    def answered(self, steps: int | None = None) -> Answered:
        """What came; every piece was a step where nothing else is known."""
        (begin, had), (end, have) = self._stamps[0], self._stamps[-1]
        ms = (end - begin) / (have - had) if have > had else None
        return Answered(tuple(self.tokens), ms, len(self._stamps) if steps is None else steps)


def race(
    arms: Mapping[str, Ask], prompts: Sequence[tuple[Prompt, list[int]]], max_tokens: int, rounds: int
) -> dict[str, list[list[Answered]]]:
    """Answers by arm, prompt and round; the arms take turns at every prompt, and who begins moves on by one."""
    names = list(arms)
    for ask in arms.values():
        ask(*prompts[0], 16)
    found: dict[str, list[list[Answered]]] = {name: [[] for _ in prompts] for name in names}
    for turn in range(rounds):
        for number, (prompt, ids) in enumerate(prompts):
            for place in range(len(names)):
                name = names[(place + number + turn) % len(names)]
                found[name][number].append(arms[name](prompt, ids, max_tokens))
    return found


def show(found: Mapping[str, list[list[Answered]]], kinds: Sequence[str]) -> None:
    """Print the table of arms, the first of which is plain, and speed-ups by kind."""
    names = list(found)
    times = {
        name: [_typical([a.token_ms for a in answers]) for answers in by_prompt] for name, by_prompt in found.items()
    }
    used = [n for n in range(len(kinds)) if all(times[name][n] is not None for name in names)]
    plain = [float(times[names[0]][n] or 0.0) for n in used]
    wide = max(map(len, names))
    print(
        f"{'':{wide}} {'ms a token':>10} {'speed-up':>8} {'95 %':>12} {'worst':>6} {'tokens a step':>13} same answers"
    )
    ratios: dict[str, list[float]] = {}
    for name in names:
        own_ms = [float(times[name][n] or 0.0) for n in used]
        ratios[name] = [p / ms for p, ms in zip(plain, own_ms, strict=True)]
        answers = [a for n in used for a in found[name][n]]
        length = sum(len(a.tokens) for a in answers) / sum(a.steps for a in answers)
        equal = sum(a.tokens == found[names[0]][n][0].tokens for n in used for a in found[name][n])
        between = interval(ratios[name])
        span = f"{between[0]:.2f}..{between[1]:.2f}" if between and name != names[0] else ""
        print(
            f"{name:{wide}} {geometric_mean(own_ms):>10.2f} {geometric_mean(ratios[name]):>8.2f} {span:>12} "
            f"{min(ratios[name]):>6.2f} {length:>13.2f} {equal}/{len(answers)}"
        )
    print()
    print(f"{'speed-up by kind':{wide}} " + " ".join(f"{name[:20]:>20}" for name in names[1:]))
    for kind in dict.fromkeys(kinds):
        places = [place for place, n in enumerate(used) if kinds[n] == kind]
        if places:
            cells = (geometric_mean([ratios[name][place] for place in places]) for name in names[1:])
            print(f"{kind:{wide}} " + " ".join(f"{cell:>20.2f}" for cell in cells))


def _typical(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return median(there) if there else None


# ---- transformers ---------------------------------------------------------------------------------------


def in_transformers(model: str, drafters: Sequence[str], threads: int, clock: Clock) -> tuple[dict[str, Ask], Any, str]:
    """The arms, what renders a prompt to ids, and what is run."""
    import torch

    import augury
    from augury.bench.exported import transformers_model
    from augury.integrations.transformers import drafted

    torch.set_num_threads(threads)
    with augury.load(model, drafters=(), threads=threads, max_num_seqs=1) as engine:
        tokenizer, ends, render = engine.tokenizer, list(engine.eos_ids), engine.render
    assert tokenizer is not None
    target = transformers_model(model)

    def arm(on: Any, **options: Any) -> Ask:
        def ask(prompt: Prompt, ids: list[int], max_tokens: int) -> Answered:
            watch, given = _Streamed(clock), torch.tensor([ids])
            told = dict(options)
            if told.pop("prediction", None) and prompt.prediction is not None:
                told["prediction"] = tokenizer.encode(prompt.prediction, special=False).tolist()
            on.generate(
                given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=max_tokens,
                eos_token_id=ends, pad_token_id=ends[0], streamer=watch, **told,
            )  # fmt: skip
            return watch.answered()

        return ask

    arms = {"plain": arm(target), f"prompt lookup, {LOOKUP}": arm(target, prompt_lookup_num_tokens=LOOKUP)}
    for specs in drafters:
        arms[f"augury {specs}"] = arm(drafted(target, specs), prediction="prediction" in specs)
    return arms, render, f"{model}, transformers {version('transformers')}, bf16, {threads} threads"


class _Streamed(Watch):
    """A streamer of transformers; the first it is given is the prompt."""

    _prompt = True

    def put(self, value: Any) -> None:
        if not self._prompt:
            self.take(value.flatten().tolist())
        self._prompt = False

    def end(self) -> None:
        pass


# ---- llama.cpp ------------------------------------------------------------------------------------------


def in_llamacpp(file: str, drafters: Sequence[str], threads: int, clock: Clock) -> tuple[dict[str, Ask], Any, str]:
    """The arms, what renders a prompt to ids, and what is run."""
    from augury.integrations.llamacpp import AuguryDraft

    llama = import_module("llama_cpp")
    lookup = import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding
    plain, guessing = (
        llama.Llama(file, n_ctx=2048, n_threads=threads, n_threads_batch=threads, logits_all=every, verbose=False)
        for every in (False, True)
    )
    ends = {plain.token_eos()}

    def arm(on: Any, draft: Any) -> Ask:
        def ask(prompt: Prompt, ids: list[int], max_tokens: int) -> Answered:
            watch, counted = Watch(clock), _Counted(draft)
            if draft is not None and "prediction" in getattr(draft, "names", ()) and prompt.prediction is not None:
                draft.expect(on.tokenize(prompt.prediction.encode(), add_bos=False, special=False))
            on.draft_model = None if draft is None else counted
            on.reset()  # what the cache holds of an answer before is not to help
            for number, token in enumerate(on.generate(ids, temp=0.0), 1):
                watch.take([token])
                if token in ends or number == max_tokens:
                    break
            return watch.answered(None if draft is None else counted.asked + 1)

        return ask

    arms = {"plain": arm(plain, None), f"prompt lookup, {LOOKUP}": arm(guessing, lookup(num_pred_tokens=LOOKUP))}
    arms |= {f"augury {specs}": arm(guessing, AuguryDraft(specs)) for specs in drafters}
    chat = import_module("llama_cpp.llama_chat_format")
    template = chat.Jinja2ChatFormatter(plain.metadata["tokenizer.chat_template"], eos_token="", bos_token="")

    def render(text: str) -> list[int]:
        written = template(messages=[{"role": "user", "content": text}]).prompt
        return list(plain.tokenize(written.encode(), add_bos=False, special=True))

    name = f"{Path(file).name}, llama-cpp-python {version('llama-cpp-python')}, {threads} threads"
    return arms, render, name


class _Counted:
    """A draft model, and how often it was asked: once a step."""

    def __init__(self, draft: Any) -> None:
        self._draft = draft
        self.asked = 0

    def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
        self.asked += 1
        return self._draft(input_ids, **kwargs)


def rows(paths: Sequence[str], threads: int, clock: Clock) -> None:
    """Print what forwards of llama.cpp cost by rows, and what guessing brings at these costs."""
    llama = import_module("llama_cpp")
    print(
        f"llama-cpp-python {version('llama-cpp-python')}, {threads} threads, {processor().name}, context {CONTEXT}, "
        f"fastest of {REPEATS}, milliseconds of "
        f"{next(name for name, known in CLOCKS.items() if known is clock)} time"
    )
    print(f"{'':28} {'ms':>6}  " + "".join(f"{f'{n} rows':>9}" for n in SIZES[1:]) + "   speed-up at a chance of")
    print(f"{'file':28} {'1 row':>6}  " + f"{'to 1 row':>9}" + " " * 9 * (len(SIZES) - 2) + "   ", end="")
    print("".join(f"{p:>6.1f}" for p in SURE) + "   pays from")
    for path in paths:
        model = llama.Llama(
            path, n_ctx=CONTEXT + 64, n_threads=threads, n_threads_batch=threads, logits_all=True, verbose=False
        )
        times = _forwards(model, clock)
        costs = table([times[n] for n in SIZES])
        ratios = "".join(f"{times[n] / times[1]:>9.2f}" for n in SIZES[1:])
        gains = "".join(f"{gain(costs, p):>6.2f}" for p in SURE)
        pays = next((f"{p:.2f}" for p in np.arange(0.0, 1.001, 0.01) if gain(costs, float(p)) >= HURDLE), "never")
        print(f"{Path(path).name[:28]:28} {times[1]:>6.2f}  {ratios}   {gains}   {pays:>9}")
        model.close()


def stored(file: str, kind: str, folder: Path) -> str:
    """A GGUF file of bf16 weights stored anew by llama.cpp in ``folder``; its path.

    Raises:
        InputError: llama.cpp knows no such kind, or cannot store the file so.
    """
    llama = import_module("llama_cpp")
    options = llama.llama_model_quantize_default_params()
    options.ftype = getattr(llama, f"LLAMA_FTYPE_MOSTLY_{kind}", None)
    out = folder / f"{kind}.gguf"
    if options.ftype is None or llama.llama_model_quantize(file.encode(), str(out).encode(), ctypes.byref(options)):
        raise InputError(f"llama.cpp cannot store {file} as {kind!r}; it knows such kinds as Q4_0, Q4_1 and Q8_0")
    return str(out)


def _forwards(model: Any, clock: Clock) -> dict[int, float]:
    """Milliseconds of the fastest forward by rows, behind ``CONTEXT`` tokens: what else runs only ever adds."""
    tokens = (np.arange(CONTEXT + max(SIZES)) % 1000 + 1000).tolist()
    model.eval(tokens[:CONTEXT])
    times: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(REPEATS):
        for size in SIZES:
            for _ in range(2):  # what a forward of another size left in the caches is not how decoding runs
                model.n_tokens = CONTEXT
                begin = clock()
                model.eval(tokens[CONTEXT : CONTEXT + size])
                spent = 1e3 * (clock() - begin)
            times[size].append(spent)
    return {size: min(ms) for size, ms in times.items()}


def table(ms: Sequence[float]) -> Costs:
    """The budget's table from forwards of ``SIZES`` rows, straight between them."""
    return Costs(np.interp(np.arange(SIZES[-1] + 1), [0, *SIZES], [0.0, *np.maximum.accumulate(ms)]), 0.0, 0.0)


def gain(costs: Costs, chance: float) -> float:
    """How many times as fast as plain decoding the best chain is whose tokens are right with a chance each.

    That is, each where the one before it is; and drafting itself takes no time.
    """
    depth = len(costs.verify) - 2
    best = promise(
        DraftTree.chain(np.zeros(depth, np.int32), [chance**place for place in range(1, depth + 1)]), costs, 0
    )
    return best.tokens * float(costs.verify[1]) / best.ms


# ---- the command ----------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m augury.bench.inside", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="engine", required=True)
    for name in ("transformers", "llamacpp"):
        command = commands.add_parser(name)
        if name == "transformers":
            command.add_argument("--model", default="smollm2-135m", help="embedded name, GGUF file, or directory")
        else:
            command.add_argument("model", metavar="FILE", help="a GGUF file")
        command.add_argument("--drafters", action="append", help="an arm with these specs; more may be given")
        command.add_argument("--kinds", default="", help="comma list of kinds of prompts; all when empty")
        command.add_argument("--limit", type=int, default=1, help="prompts of each kind")
        command.add_argument("--max-tokens", type=int, default=96, help="of each answer at most")
        command.add_argument("--rounds", type=int, default=2, help="answers of each arm to each prompt")
        command.add_argument("--threads", type=int, default=2)
    command = commands.add_parser("rows")
    command.add_argument("file", metavar="FILE", help="a GGUF file")
    command.add_argument("--as", action="append", default=[], dest="kinds", help="store it anew so too: Q8_0, Q4_0")
    command.add_argument("--threads", type=int, default=2)
    for command in commands.choices.values():
        command.add_argument("--clock", choices=list(CLOCKS), default="wall", help="cpu where other programs run, too")
    asked = parser.parse_args(arguments)
    clock = CLOCKS[asked.clock]
    if asked.engine == "rows":
        with tempfile.TemporaryDirectory() as folder:
            rows([asked.file, *(stored(asked.file, kind, Path(folder)) for kind in asked.kinds)], asked.threads, clock)
        return
    make = in_transformers if asked.engine == "transformers" else in_llamacpp
    arms, render, name = make(asked.model, asked.drafters or ["suffix"], asked.threads, clock)
    kinds = [kind for kind in asked.kinds.split(",") if kind]
    prompts = [(p, [int(id) for id in render(p.text)]) for p in select(own(), kinds, asked.limit)]
    print(
        f"{name}, {processor().name}: {len(prompts)} prompts of {len({p.kind for p, _ in prompts})} kinds, "
        f"greedy, {asked.max_tokens} tokens at most, {asked.rounds} rounds, {asked.clock} time"
    )
    show(race(arms, prompts, asked.max_tokens, asked.rounds), [p.kind for p, _ in prompts])


if __name__ == "__main__":
    main()
