"""Groups of options that several verbs share: each a dataclass whose fields are the flags.

A verb takes a group as one parameter; ``spread`` shows the command line one option for each field and hands
the verb the group again, so that no verb repeats thirty parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from typer import Argument, Option

from augury.api import AUTO
from augury.cli.terminal import note, progress
from augury.drafters import split
from augury.drafters.drafter import tenant_of
from augury.errors import InputError
from augury.texts import utf8

if TYPE_CHECKING:
    from augury.engine.engine import Engine
    from augury.sampling import Sampling
    from augury.tree import IntArray

Only = Annotated[
    bool, Option("--only", help="Those of --drafters alone, not all that need nothing.", rich_help_panel="Drafting")
]
"""Of verbs that try every drafter alone."""


def spread(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb, with every parameter that is a group replaced by one keyword parameter for each of its fields."""
    hints = get_type_hints(verb, include_extras=True)
    hints.pop("return", None)
    parameters, groups = [], {}
    for name, own in inspect.signature(verb).parameters.items():
        hint = hints[name]
        if not is_dataclass(hint):
            parameters.append(own.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        assert isinstance(hint, type)
        groups[name] = hint
        inner = get_type_hints(hint, include_extras=True)
        for f in fields(hint):
            default = f.default_factory() if f.default_factory is not MISSING else f.default
            parameters.append(
                inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=inner[f.name])
            )

    @wraps(verb)
    def spreaded(**given: Any) -> None:
        _check_text(given)
        made = {name: group(**{f.name: given.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        verb(**given, **made)

    del spreaded.__wrapped__  # else inspect and typer look at the verb again
    spreaded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spreaded.__annotations__ = {p.name: p.annotation for p in parameters}
    return spreaded


def _check_text(given: dict[str, Any]) -> None:
    """Refuse bytes that are no text in the terminal's encoding; Python passes them on as lone surrogates."""
    for name, value in given.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and any("\ud800" <= c <= "\udfff" for c in text):
                raise InputError(f"{name} is not UTF-8 text; convert it first, or give it in a file")


@dataclass(frozen=True)
class Running:
    """How a model runs."""

    dtype: Annotated[
        str | None, Option(help="bfloat16, float32 or float16.", show_default="auto", rich_help_panel="Model")
    ] = None
    device: Annotated[str | None, Option(help="cpu or cuda.", show_default="auto", rich_help_panel="Model")] = None
    threads: Annotated[int | None, Option(help="CPU threads.", show_default="all", rich_help_panel="Model")] = None
    max_model_len: Annotated[
        int | None, Option(help="Context in tokens.", show_default="the model's", rich_help_panel="Model")
    ] = None
    runner: Annotated[
        str | None,
        Option(help="native, torch or transformers.", show_default="fastest", rich_help_panel="Model"),
    ] = None

    def load(
        self,
        model: str,
        drafters: str,
        acceptance: str,
        measure: bool,
        requests: int = 1,
        draft_tokens: int | None = None,
    ) -> Engine:
        """Load for so many requests at once, with progress on the terminal."""
        import augury

        with progress() as told:
            engine = augury.load(
                model,
                drafters=drafters,
                acceptance=acceptance,  # type: ignore[arg-type] # the engine names a wrong rule best
                dtype=self.dtype,
                device=self.device,
                threads=self.threads,
                max_model_len=self.max_model_len,
                max_num_seqs=requests,
                runner=self.runner,
                measure=measure,
                draft_tokens=draft_tokens,
                progress=told,
            )
        if "(native: " in engine.target.info.runner:
            note(f"augury: the fast CPU forward is not used: {engine.target.info.runner}")
        return engine


@dataclass(frozen=True)
class Loading(Running):
    """Which model, and how it runs."""

    model: Annotated[str, Option(help="Embedded name, directory or GGUF file.", rich_help_panel="Model")] = (
        "smollm2-135m"
    )

    def engine(self, drafters: str, acceptance: str, measure: bool = True, requests: int = 1) -> Engine:
        """Load for so many requests at once, with progress on the terminal."""
        return self.load(self.model, drafters, acceptance, measure, requests)


@dataclass(frozen=True)
class Guessing:
    """Who guesses, and by what rule guesses are accepted."""

    drafters: Annotated[
        str,
        Option(help="Comma list of names from `augury info`, module:Class, auto, or none.", rich_help_panel="Drafting"),
    ] = AUTO
    acceptance: Annotated[
        str, Option(help="coupled, rejection or block.", rich_help_panel="Drafting")
    ] = "coupled"  # fmt: skip


@dataclass(frozen=True)
class Expecting:
    """What the caller expects, and whether anything is guessed at all."""

    prediction: Annotated[
        str | None, Option(help="Text the answer is expected to be, whole or in parts.", rich_help_panel="Drafting")
    ] = None
    prediction_file: Annotated[
        Path | None, Option(help="The same, read from a file.", rich_help_panel="Drafting")
    ] = None  # fmt: skip
    no_draft: Annotated[bool, Option("--no-draft", help="Decode plainly.", rich_help_panel="Drafting")] = False

    def drafters(self, guessing: Guessing) -> str:
        """The drafters to load; raises for flags that would have no effect."""
        expects = self.prediction is not None or self.prediction_file is not None
        if self.prediction is not None and self.prediction_file is not None:
            raise InputError("--prediction and --prediction-file exclude each other; give one of them")
        if self.no_draft and guessing.drafters not in (AUTO, "none"):
            raise InputError(f"--no-draft and --drafters {guessing.drafters} exclude each other; give one of them")
        drafters = "none" if self.no_draft else guessing.drafters
        named = [spec.partition(":")[0] for spec in split(drafters)]
        if expects and not {"prediction", AUTO} & {*named}:
            raise InputError(f"a prediction needs the drafter prediction, and the drafters are {drafters}")
        return drafters

    def text(self) -> str | None:
        """The expected text, or None."""
        return self.prediction if self.prediction_file is None else utf8(self.prediction_file)


@dataclass(frozen=True)
class Belonging:
    """Whose answers are remembered, and whose are not used."""

    cache_salt: Annotated[
        str,
        Option(
            metavar="SECRET",
            envvar="AUGURY_CACHE_SALT",
            help="Stands for a user: the drafter memory keeps users apart.",
            show_default="the local user",
            rich_help_panel="Drafting",
        ),
    ] = ""

    def check(self) -> None:
        """Refuse what is too long, before anything is loaded."""
        tenant_of(self.cache_salt)


@dataclass(frozen=True)
class Law:
    """The law of the answer; ``--temperature 0`` is greedy."""

    temperature: Annotated[float, Option(help="0 is greedy.", rich_help_panel="Sampling")] = 0.0
    top_k: Annotated[int, Option(help="Likeliest tokens kept; 0 keeps all.", rich_help_panel="Sampling")] = 0
    top_p: Annotated[float, Option(help="Nucleus kept.", rich_help_panel="Sampling")] = 1.0
    min_p: Annotated[
        float, Option(help="Least probability, relative to the likeliest token's.", rich_help_panel="Sampling")
    ] = 0.0
    typical_p: Annotated[float, Option(help="Mass of typical tokens kept.", rich_help_panel="Sampling")] = 1.0
    repetition_penalty: Annotated[
        float, Option(help="Divides the logits of tokens seen in prompt and answer.", rich_help_panel="Sampling")
    ] = 1.0
    presence_penalty: Annotated[
        float, Option(help="Taken from tokens of the answer.", rich_help_panel="Sampling")
    ] = 0.0  # fmt: skip
    frequency_penalty: Annotated[
        float, Option(help="The same, for every occurrence.", rich_help_panel="Sampling")
    ] = 0.0  # fmt: skip
    logit_bias: Annotated[
        list[str], Option(metavar="ID=VALUE", help="Added to a token's logit; repeatable.", rich_help_panel="Sampling")
    ] = field(default_factory=list)
    bad_words: Annotated[
        list[str],
        Option(
            metavar="TEXT",
            help="Bans the tokens that spell a text, at the start and behind a space; repeatable. Other tokens may "
            "still spell it.",
            rich_help_panel="Sampling",
        ),
    ] = field(default_factory=list)
    min_tokens: Annotated[int, Option(help="Tokens before the answer may end.", rich_help_panel="Sampling")] = 0
    stop_token_ids: Annotated[
        str, Option(metavar="ID,ID", help="More ids that end the answer.", rich_help_panel="Sampling")
    ] = ""
    seed: Annotated[
        int | None, Option(help="Same seed, same text.", show_default="random", rich_help_panel="Sampling")
    ] = None

    def sampling(self, engine: Engine | None = None) -> Sampling:
        """The law as the engine takes it; without an engine, for checking values early, bad words are left out."""
        from augury.sampling import Sampling

        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=dict(_bias(text) for text in self.logit_bias),
            min_tokens=self.min_tokens,
            bad_words=() if engine is None else tuple(_spellings(engine, self.bad_words)),
            stop_token_ids=_ids(self.stop_token_ids),
            seed=self.seed,
        )


@dataclass(frozen=True)
class Shaping:
    """What the answer may be."""

    json_schema: Annotated[
        Path | None, Option(help="Answer in JSON as a schema in a file wants it.", rich_help_panel="Structure")
    ] = None
    json_object: Annotated[
        bool, Option("--json-object", help="Answer with some JSON object.", rich_help_panel="Structure")
    ] = False
    regex: Annotated[
        str | None, Option(help="Answer with a text that this matches, as a whole.", rich_help_panel="Structure")
    ] = None
    grammar: Annotated[
        Path | None, Option(help="Answer with a text of a grammar in a file, in Lark.", rich_help_panel="Structure")
    ] = None

    def source(self) -> tuple[str, str | None] | None:
        """Kind and source of the grammar, or None; raises, before anything is loaded, for several and broken files."""
        wanted: list[tuple[str, str | None]] = []
        if self.json_schema is not None:
            wanted.append(("json_schema", utf8(self.json_schema)))
        if self.json_object:
            wanted.append(("json_object", None))
        if self.regex is not None:
            wanted.append(("regex", self.regex))
        if self.grammar is not None:
            wanted.append(("lark", utf8(self.grammar)))
        if len(wanted) > 1:
            raise InputError("--json-schema, --json-object, --regex and --grammar exclude each other; give one of them")
        return wanted[0] if wanted else None


@dataclass(frozen=True)
class Ending:
    """Where the answer ends."""

    max_tokens: Annotated[int, Option(help="Tokens of the answer at most.", rich_help_panel="Ending")] = 512
    stop: Annotated[
        list[str], Option(metavar="TEXT", help="Text that ends the answer; repeatable.", rich_help_panel="Ending")
    ] = field(default_factory=list)
    ignore_eos: Annotated[bool, Option("--ignore-eos", help="Go on behind end tokens.", rich_help_panel="Ending")] = (
        False
    )

    def check(self, law: Law) -> None:
        """Refuse what contradicts itself or the law, before anything is loaded."""
        law.sampling()
        if law.min_tokens > self.max_tokens >= 0:
            raise InputError(f"--min-tokens {law.min_tokens} is above --max-tokens {self.max_tokens}")


@dataclass(frozen=True)
class Asking:
    """The prompt."""

    prompt: Annotated[str | None, Argument(help="The prompt; - reads it from stdin.")] = None
    file: Annotated[Path | None, Option(help="Read the prompt from a file.", rich_help_panel="Prompt")] = None
    raw: Annotated[
        bool, Option("--raw", help="Take the prompt as it stands: no chat template.", rich_help_panel="Prompt")
    ] = False
    system: Annotated[str | None, Option(help="System prompt.", rich_help_panel="Prompt")] = None

    def check(self) -> None:
        """Refuse what contradicts itself, before anything is loaded."""
        if self.raw and self.system is not None:
            raise InputError("--raw takes the prompt as it stands, so --system has no place; leave one of them out")
        if (self.prompt is None) == (self.file is None):
            raise InputError("give one prompt: a text, - for stdin, or --file")

    def text(self) -> str:
        """The prompt's text."""
        return utf8(self.file) if self.file is not None else utf8(None) if self.prompt == "-" else self.prompt or ""

    def ids(self, engine: Engine, text: str) -> IntArray:
        """Ids of what the engine is asked."""
        if self.raw:
            assert engine.tokenizer is not None
            return engine.tokenizer.encode(text, start=True)
        if engine.template is None:
            raise InputError(f"{engine.target.info.name} has no chat template; use --raw")
        before = [{"role": "system", "content": self.system}] if self.system is not None else []
        return engine.render([*before, {"role": "user", "content": text}])


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise InputError(f"--logit-bias {text!r} is not ID=VALUE, as in 42=-1.5") from None


def _ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(one) for one in text.split(",")) if text else ()
    except ValueError:
        raise InputError(f"--stop-token-ids {text!r} is not a comma list of token ids, as in 1,2") from None


def _spellings(engine: Engine, words: list[str]) -> list[tuple[int, ...]]:
    """Ids of each text at the beginning of an answer and behind a space, where tokenizers spell it differently."""
    assert engine.tokenizer is not None
    if "" in words:
        raise InputError("--bad-words is empty; give the text that may not be written")
    spelt = [engine.tokenizer.encode(text, special=False).tolist() for w in words for text in (w, f" {w}")]
    return list(dict.fromkeys(tuple(ids) for ids in spelt))
