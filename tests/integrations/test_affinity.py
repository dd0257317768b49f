"""Which replica a conversation goes to: known from what is asked, whoever is asked it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.integrations.ray_serve.affinity import conversation, ranked

SYSTEM = {"role": "system", "content": "Be brief."}
FIRST = {"role": "user", "content": "Hello"}
LATER = [{"role": "assistant", "content": "Hi"}, {"role": "user", "content": "And?"}]


def key(who: str = "", **asked) -> str:
    return conversation(who, json.dumps(asked).encode())


def test_turns_of_a_conversation_have_one_key():
    assert key(messages=[SYSTEM, FIRST]) == key(messages=[SYSTEM, FIRST, *LATER], temperature=0, stream=True)
    assert key(messages=[SYSTEM, FIRST]) != key(messages=[SYSTEM, {**FIRST, "content": "Bye"}])
    assert key(messages=[SYSTEM, FIRST]) != key(messages=[FIRST])


def test_keys_and_salts_tell_conversations_apart():
    keys = [key(who, messages=[FIRST], **salt) for who in ("", "one", "two") for salt in ({}, {"cache_salt": "s"})]
    assert len(set(keys)) == 6


def test_the_same_is_said_in_several_ways():
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    said = key(messages=[SYSTEM, FIRST])
    assert said == key(messages=[SYSTEM, {"role": "user", "content": parts}])
    assert said == key(instructions="Be brief.", input="Hello")
    assert said == key(instructions="Be brief.", input=[FIRST, *LATER])
    assert said == key(messages=[{**SYSTEM, "role": "developer"}, FIRST])


def test_prompts_without_turns_go_by_their_beginning():
    text = "x" * 256
    assert key(prompt=text) == key(prompt=f"{text} and more") == key(prompt=[f"{text} or less", "another"])
    assert key(prompt=text) != key(prompt=f"y{text}")
    assert key(prompt=[1, 2]) != key(prompt=[1, 3])


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"\xff", b'{"messages": 3}', b'{"messages": [3, null, {}]}', b'{"prompt": {}}', b'{"input": []}',
     b'{"messages": [{"role": [], "content": {"a": 1}}]}', b'{"cache_salt": {}}', b"[" * 100_000],
)  # fmt: skip
def test_whatever_comes_has_a_key(body):
    assert len(conversation("", body)) == 64


NAMES = st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=8)


@given(st.text(), NAMES, st.data())
def test_where_one_goes_the_order_of_the_others_stays(of, names, data):
    gone = data.draw(st.sampled_from(sorted(names)))
    order = ranked(of, names)
    assert sorted(order) == sorted(names)
    assert [name for name in order if name != gone] == ranked(of, names - {gone})


def test_keys_spread():
    firsts = [ranked(str(number), "abcd")[0] for number in range(400)]
    assert all(60 < firsts.count(name) < 140 for name in "abcd")  # 100 expected, 8.7 the standard deviation
