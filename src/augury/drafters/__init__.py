"""The drafters by name. Nothing is imported until it is named.

A drafter is asked for by a *spec*: a name of ``DRAFTERS``, or ``module:Class`` of a ``Drafter`` of one's own; either
may be followed by options of its constructor: ``ngram:min=2,max=3``, ``mine.drafters:Mine:depth=4``. An option
without a name is the first: ``model:smollm2-135m,depth=4``.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_type_hints

from augury.errors import InputError, UnknownName

if TYPE_CHECKING:
    from augury.drafters.drafter import Drafter
    from augury.models.target import TargetInfo


@dataclass(frozen=True)
class DrafterSpec:
    """One line of the registry.

    Attributes:
        target: ``module:Class``.
        doc: what it guesses from, in one line.
        needs: what must be at hand for it, in words; empty when nothing.
    """

    target: str
    doc: str
    needs: str = ""


DRAFTERS: Mapping[str, DrafterSpec] = MappingProxyType({
    "block": DrafterSpec(
        "augury.drafters.block:Block", "a trained head on the target's own hidden states, all places in one forward",
        "a head trained for the target: block:DIRECTORY",
    ),
    "eagle": DrafterSpec(
        "augury.drafters.eagle:Eagle", "a trained head on the target's own hidden states (EAGLE-3)",
        "a head trained for the target: eagle:DIRECTORY",
    ),
    "foreign": DrafterSpec(
        "augury.drafters.foreign:Foreign", "a smaller model with another tokenizer", "a model: foreign:MODEL"
    ),
    "grammar": DrafterSpec(
        "augury.drafters.grammar:Grammar", "the only text with which the request's grammar lets the answer go on",
        "a grammar in the request",
    ),
    "lookahead": DrafterSpec(
        "augury.drafters.lookahead:Lookahead", "what the target itself guessed for places ahead (Jacobi, lookahead)"
    ),
    "medusa": DrafterSpec(
        "augury.drafters.medusa:Medusa", "trained heads on the target's own hidden state, one for each place ahead",
        "heads trained for the target: medusa:DIRECTORY",
    ),
    "memory": DrafterSpec(
        "augury.drafters.memory:Memory", "what followed similar contexts in answers given to the same user before",
        "answers given before: memory:DIRECTORY keeps them",
    ),
    "model": DrafterSpec(
        "augury.drafters.model:Model", "a smaller model with the target's tokenizer", "a model: model:MODEL"
    ),
    "ngram": DrafterSpec(
        "augury.drafters.ngram:Ngram", "what followed the last tokens when they last occurred (prompt lookup)"
    ),
    "prediction": DrafterSpec(
        "augury.drafters.prediction:Prediction", "the text the caller expects, re-aligned after differences",
        "a prediction in the request",
    ),
    "recycle": DrafterSpec(
        "augury.drafters.recycle:Recycle", "what the target held likely behind the same tokens (token recycling)"
    ),
    "retrieval": DrafterSpec(
        "augury.drafters.retrieval:Retrieval", "what followed similar contexts in texts of your own, as a tree",
        "an index: augury index build FILE...",
    ),
    "self": DrafterSpec(
        "augury.drafters.itself:Itself", "the target itself in fewer bits, or fewer layers, over its own cache",
        "runner native; with runner torch self:bf16,layers=N",
    ),
    "suffix": DrafterSpec(
        "augury.drafters.suffix:Suffix", "everything that followed similar contexts in the request, as a tree"
    ),
})  # fmt: skip

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def free() -> list[str]:
    """Names of the drafters that need nothing."""
    return [name for name, spec in DRAFTERS.items() if not spec.needs]


def unreplayable(spec: str) -> str | None:
    """Why a drafter cannot guess for a recorded text, whose target is not there, or None. Imports its class.

    Raises:
        InputError: a module or class that is not there or is no drafter.
    """
    name, _ = _parts(spec)
    cls = _class(DRAFTERS[name].target if name in DRAFTERS else name)
    if "target" in inspect.signature(cls).parameters:
        return "it works with the target itself"
    if cls.reads_grammar:
        return "it follows the request's grammar, which a log does not hold"
    if cls.needs_hidden:
        return "it reads the target's hidden states"
    return "it learns from the target's rows of logits" if cls.needs_rows else None


def takes(spec: str, resource: str, without: bool = True) -> bool:
    """Whether a drafter's constructor takes one of ``make``'s resources. Imports its class.

    Args:
        spec: see the module's text.
        resource: its name.
        without: whether one that can be had without it counts too.

    Raises:
        InputError: a module or class that is not there or is no drafter.
    """
    name, _ = _parts(spec)
    found = inspect.signature(_class(DRAFTERS[name].target if name in DRAFTERS else name)).parameters.get(resource)
    return found is not None and (without or found.default is found.empty)


def brought(info: TargetInfo) -> list[str]:
    """Names of those that a target brings along: itself where it can be had in 4 bits, and heads shipped for it."""
    from augury.drafters.shipped import fitting

    return [*(["self"] if 4 in info.short else []), *fitting(info)]


def check(spec: str, before: str = "") -> None:
    """Refuse what is neither a name nor a spec with options or of a class; imports nothing.

    Args:
        spec: of one drafter.
        before: the one in front of it in a list, which ``spec`` may have been meant for.

    Raises:
        UnknownName: no such drafter.
    """
    if spec not in DRAFTERS and ":" not in spec:
        name, options = _parts(before)
        hint = _nameless(name, options.rstrip(","), spec) if options else ""
        raise UnknownName("drafter", spec, [*DRAFTERS, "module:Class"], hint)


def split(specs: str) -> list[str]:
    """The specs of a comma list; a comma before ``option=`` belongs to the spec."""
    return [one.strip() for one in re.split(r",(?!\s*\w+\s*=)", specs)]


def make(spec: str, **resources: object) -> Drafter:
    """Construct a drafter.

    Args:
        spec: see the module's text.
        resources: what some constructors ask for by name and no spec can say, e.g. ``target``.

    Raises:
        UnknownName: no such drafter, or no such option of it.
        InputError: a module or class that is not there or is no drafter; an option of a wrong type or value.
    """
    name, options = _parts(spec)
    if name not in DRAFTERS and ":" not in name:
        raise UnknownName("drafter", name, [*DRAFTERS, "module:Class"])
    cls = _class(DRAFTERS[name].target if name in DRAFTERS else name)
    parameters = inspect.signature(cls).parameters
    takes = {n: p for n, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    given: dict[str, Any] = {n: value for n, value in resources.items() if n in takes}
    types = get_type_hints(cls.__init__)
    listed = [option for o in options.split(",") if (option := o.strip())]
    for place, option in enumerate(listed):
        key, equals, text = (part.strip() for part in option.partition("="))
        if place == 0 and not equals and key not in takes:
            key, text = next((n for n in takes if n not in resources), key), key
        if key not in takes or key in given:
            hint = "" if equals or key in takes or not place else _nameless(name, ",".join(listed[:place]), key)
            raise UnknownName(f"option of drafter {name}", key, [n for n in takes if n not in given], hint)
        if equals and not text:
            raise InputError(f"drafter {name}: {key} has no value; give it as {name}:{key}=VALUE")
        given[key] = _value(name, key, text, types.get(key, str))
    missing = [n for n, p in takes.items() if p.default is p.empty and n not in given]
    if missing:
        raise InputError(f"drafter {name} needs {missing[0]}; give it as {name}:{missing[0].upper()}")
    made: Drafter = cls(**given)
    return made


def _parts(spec: str) -> tuple[str, str]:
    """The name of a spec, and its options."""
    name, _, options = spec.partition(":")
    if options and name not in DRAFTERS:
        attribute, _, options = options.partition(":")
        name = f"{name}:{attribute}"
    return name, options


def _nameless(name: str, options: str, text: str) -> str:
    """What may have been meant by ``name:options,text``."""
    front = f"{name}:{options}"
    return (
        f"Only the first option of a drafter may do without its name: write {front},NAME={text}, "
        f"or for two drafters {front},{name}:{text}"
    )


def _class(target: str) -> type[Drafter]:
    """The drafter class at ``module:Class``."""
    from augury.drafters.drafter import Drafter

    module, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever a module of the user does when it is imported
        raise InputError(f"drafter {target!r} cannot be imported: {error}") from None
    if not (isinstance(found, type) and issubclass(found, Drafter)):
        raise InputError(f"{target!r} is not a Drafter; derive it from augury.Drafter")
    return found


def _value(name: str, key: str, text: str, wanted: object) -> object:
    """An option's text as the type of the parameter."""
    if wanted is bool:
        if text.lower() not in _TRUTH:
            raise InputError(f"drafter {name}: {key} is {text!r}; it must be true or false")
        return _TRUTH[text.lower()]
    if wanted is int or wanted is float:
        try:
            return int(text) if wanted is int else float(text)
        except ValueError:
            kind = "a whole number" if wanted is int else "a number"
            raise InputError(f"drafter {name}: {key} is {text!r}; it must be {kind}") from None
    return text
