"""Structured answers of the embedded model: whole ones are as they were wanted, and drafting changes no token."""

from __future__ import annotations

import json
import re

import pytest

import augury
from augury.sampling import Sampling

pytestmark = pytest.mark.real

DRAFTERS = ("suffix", "ngram", "lookahead", "recycle", "prediction", "self", "grammar", "eagle")


def record(**properties):
    return {
        "type": "object", "additionalProperties": False, "required": [*properties], "properties": properties,
    }  # fmt: skip


NAME = {"type": "string", "minLength": 1, "maxLength": 16}
SCHEMAS = {
    "numbers": (
        "A measurement in JSON.",
        record(count={"type": "integer", "minimum": -5, "maximum": 120}, ok={"type": "boolean"}, none={"type": "null"}),
    ),
    "nested": (
        "Invent a person, in JSON.",
        record(name=NAME, home=record(city=NAME, tags={"type": "array", "items": {"enum": ["red", "green"]},
                                                       "minItems": 1, "maxItems": 3})),
    ),
    "reference": (
        "A small family tree, in JSON.",
        {**record(root={"$ref": "#/$defs/node"}),
         "$defs": {"leaf": record(label=NAME), "node": record(
             label=NAME, children={"type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 2})}},
    ),
    "either": (
        "A pet or a car, in JSON.",
        {"anyOf": [record(kind={"const": "pet"}, legs={"type": "integer", "minimum": 0, "maximum": 8}),
                   record(kind={"const": "car"}, maker=NAME)]},
    ),
    "pattern": (
        "A booking, in JSON.",
        record(day={"type": "string", "format": "date"}, code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
    ),
}  # fmt: skip


def valid(schema, value, root=None):
    """Whether a value is as these schemas want it, by hand."""
    root = root or schema
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
    if "$ref" in schema:
        return valid(root["$defs"][schema["$ref"].rpartition("/")[2]], value, root)
    if "anyOf" in schema:
        return any(valid(one, value, root) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    if not isinstance(value, kinds[schema["type"]]) or (schema["type"] == "integer" and isinstance(value, bool)):
        return False
    if schema["type"] == "object":
        inside = all(valid(schema["properties"][k], v, root) for k, v in value.items() if k in schema["properties"])
        return inside and {*value} == {*schema["required"]}
    if schema["type"] == "array":
        sized = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 99)
        return sized and all(valid(schema["items"], one, root) for one in value)
    if schema["type"] == "string":
        form = {"date": r"\d{4}-[01]\d-[0-3]\d"}.get(schema.get("format"), schema.get("pattern", ".*"))
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 99) and bool(
            re.fullmatch(form.strip("^$"), value, re.DOTALL)
        )
    return schema["type"] != "integer" or schema.get("minimum", value) <= value <= schema.get("maximum", value)


def test_the_check_by_hand_can_say_no():
    assert valid(SCHEMAS["nested"][1], {"name": "a", "home": {"city": "b", "tags": ["red"]}})
    homes = [{"city": "b", "tags": []}, {"city": "b", "tags": ["pink"]}, {"city": "b"}, None]
    for wrong in ({}, {"name": "a"}, *({"name": "a", "home": home} for home in homes)):
        assert not valid(SCHEMAS["nested"][1], wrong)


@pytest.fixture(scope="module")
def every():
    """The embedded model with every drafter that needs nothing of the user's, each guess verified."""
    names = ",".join(DRAFTERS)
    with augury.load("smollm2-135m", drafters=names, max_model_len=1024, max_num_seqs=2, measure=False) as engine:
        yield engine


def asked(engine, name, **sampling):
    prompt, schema = SCHEMAS[name]
    return engine.render(prompt), Sampling(grammar=engine.grammar("json_schema", schema), **sampling)


def checked(engine, name, *, drafters, expected=None, **options):
    """An answer, which must be whole and as its schema wants it; and the same as expected, if anything is."""
    acceptance = options.pop("acceptance", None)
    prompt, sampling = asked(engine, name, **options)
    hint = expected.text.replace("a", "e", 1) if expected and "prediction" in drafters else None
    found = engine.generate(
        prompt, sampling, max_tokens=400, drafters=drafters, prediction=hint, acceptance=acceptance
    )  # fmt: skip
    assert found.finish_reason == "stop"
    assert valid(SCHEMAS[name][1], json.loads(found.text)), found.text
    assert not [p.fault for s in found.record.steps for p in s.proposals if p.fault]
    if expected is not None:
        assert found.tokens == expected.tokens
    return found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_drafter_gives_the_same_structured_answer(every, temperature):
    name, law = "nested" if temperature else "either", {"temperature": temperature, "seed": 11}
    plain = checked(every, name, drafters=[], **law)
    accepted = 0
    for drafters in (*([d] for d in DRAFTERS), [*DRAFTERS]):
        accepted += checked(every, name, drafters=drafters, expected=plain, **law).record.accepted
    assert accepted > len(plain.tokens)


@pytest.mark.parametrize("name", SCHEMAS)
def test_whole_answers_are_as_their_schema_wants_them(every, name):
    for seed in range(3):
        checked(every, name, drafters=["grammar", "suffix"], temperature=float(seed > 0), seed=seed)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_under_the_ratio_rules_too(every, rule):
    for seed in range(2):
        checked(every, "nested", drafters=["self", "grammar"], temperature=1.0, seed=seed, acceptance=rule)


def test_together_they_answer_as_alone(every):
    prompts, samplings = zip(
        *(asked(every, name, temperature=1.0, seed=3) for name in ("numbers", "pattern")), strict=True
    )
    alone = [every.generate(p, s, max_tokens=200, draft=False) for p, s in zip(prompts, samplings, strict=True)]
    together = every.generate_all(prompts, samplings, max_tokens=200, drafters=["grammar", "suffix", "self"])
    assert [r.tokens for r in together] == [r.tokens for r in alone]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_with_every_drafter(every, name, temperature):
    for seed in range(1 + 2 * (temperature > 0)):
        law = {"temperature": temperature, "seed": seed}
        plain = checked(every, name, drafters=[], **law)
        for drafter in DRAFTERS:
            checked(every, name, drafters=[drafter], expected=plain, **law)
        if temperature:
            for rule in ("rejection", "block"):
                checked(every, name, drafters=[*DRAFTERS], acceptance=rule, **law)
