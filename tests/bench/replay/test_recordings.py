"""Logs of conversations: every form, and what is said of lines that have none."""

from __future__ import annotations

import json

import pytest
from corpus import Letters

from augury.bench.replay import recordings
from augury.bench.replay.recordings import MAX_IDS, read
from augury.errors import InputError
from augury.models.load import Wording, load_wording
from augury.models.template import ChatTemplate

PLAIN = Wording(Letters(), None, frozenset())


class Guarded(Letters):
    """Letters that a chat template can write with."""

    def encode_guarded(self, render, limit=None):
        return self.encode(render(lambda text: text))


CHAT = Wording(
    Guarded(),
    ChatTemplate(
        "{% for m in messages %}<{{ m.role }}:{{ m.content }}>{% endfor %}"
        "{% if add_generation_prompt %}<a:{% endif %}", "letters",
    ),
    frozenset({ord("!")}),
)  # fmt: skip


def logged(tmp_path, *rows, wording=None, **options):
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return read(file, wording, **options)


def texts(log):
    return [("".join(map(chr, r.prompt)), "".join(map(chr, r.answer))) for r in log.recordings]


def say(*turns):
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return {"messages": [{"role": roles[turn[0]], "content": turn[1:]} for turn in turns]}


def test_every_assistant_message_is_an_answer_to_all_before_it(tmp_path):
    row = say("sbe", "uone", "aEINS", "utwo", "aZWEI")
    found = logged(tmp_path, row, wording=CHAT)
    assert texts(found) == [
        ("<system:be><user:one><a:", "EINS"),
        ("<system:be><user:one><assistant:EINS><user:two><a:", "ZWEI"),
    ]
    assert found.conversations == 1
    assert texts(logged(tmp_path, row, wording=PLAIN)) == [("be\none\n", "EINS"), ("be\none\nEINS\ntwo\n", "ZWEI")]


def test_parts_of_a_message_are_one_text_and_other_fields_are_passed_over(tmp_path):
    row = say("uone", "aEINS")
    row["messages"][1] = {
        "role": "assistant",
        "content": [{"type": "text", "text": "EI"}, {"text": "NS"}],
        "refusal": 0,
    }
    assert texts(logged(tmp_path, {**row, "model": "x", "usage": {}}, wording=CHAT)) == [("<user:one><a:", "EINS")]


@pytest.mark.parametrize("key", ["completion", "response", "answer"])
def test_a_prompt_and_its_answer(tmp_path, key):
    row = {"prompt": "one", key: "EINS", "id": 7}
    assert texts(logged(tmp_path, row, wording=CHAT)) == [("<user:one><a:", "EINS")]
    assert texts(logged(tmp_path, row, wording=CHAT, raw=True)) == [("one", "EINS")]
    assert texts(logged(tmp_path, row, wording=PLAIN)) == [("one", "EINS")]


def test_ids_need_no_tokenizer(tmp_path):
    found = logged(
        tmp_path, {"prompt_ids": [5, 300_000], "answer_ids": [7]}, "", {"prompt_ids": [1], "answer_ids": [2]}
    )
    assert [(r.line, r.prompt.tolist(), r.answer.tolist()) for r in found.recordings] == [
        (1, [5, 300_000], [7]),
        (3, [1], [2]),
    ]
    assert found.vocab_size == 300_001
    assert logged(tmp_path, {"prompt_ids": [5], "answer_ids": [7]}).vocab_size == 2**18
    assert logged(tmp_path, {"prompt_ids": [5], "answer_ids": [7]}, wording=PLAIN).vocab_size == 200


def test_whose_it_is_and_what_was_expected(tmp_path):
    rows = [
        {"prompt": "a", "answer": "b", "user": "ann", "prediction": "c"},
        {"prompt": "a", "answer": "b", "user": 7, "prediction": {"type": "content", "content": "d"}},
        {"prompt": "a", "answer": "b"},
    ]
    found = logged(tmp_path, *rows, wording=PLAIN).recordings
    assert [r.user for r in found] == ["ann", "7", ""]
    assert [r.prediction if r.prediction is None else r.prediction.tolist() for r in found] == [[99], [100], None]


def test_what_cannot_be_replayed_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(recordings, "MAX_TOKENS", 30)
    found = logged(
        tmp_path, say("aHI", "uone", "aEINS"), say("uone", "a"), say("uone", "a" + 30 * "x"), say("uone"),
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [{}]}]},
        wording=PLAIN,
    )  # fmt: skip
    assert texts(found) == [("HI\none\n", "EINS")]
    assert found.left_out == {"nothing before them": 1, "empty": 2, recordings._LONG: 1}
    assert found.conversations == 5


def test_how_much_is_read(tmp_path):
    rows = [say("uone", "aEINS!"), say("utwo", "aZWEI!"), "this line is never reached"]
    found = logged(tmp_path, *rows, wording=CHAT, limit=2)
    assert [answer for _, answer in texts(found)] == ["EINS!", "ZWEI!"]
    assert [r.ended for r in found.recordings] == [True, True]
    found = logged(tmp_path, *rows, wording=CHAT, limit=1, max_tokens=3)
    assert texts(found) == [("<user:one><a:", "EIN")]
    assert not found.recordings[0].ended, "it was cut"


GOOD = {"prompt_ids": [1], "answer_ids": [2]}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "line 2: it is not JSON"),
        ("[" * 100_000, "line 2: it is not JSON"),
        (b"\xff{}", "line 2: it is not JSON: 'utf-8'"),
        ([1], "line 2: it is a JSON list; an object is expected"),
        ({}, 'line 2: "messages" is missing, or "prompt" with one of completion, response, answer, or ids of both'),
        ({"prompt": "x"}, 'line 2: "prompt" has no answer: one of completion, response, answer is missing'),
        ({"prompt": ["x"], "answer": "y"}, 'line 2: "prompt" and "answer" must be texts'),
        ({"prompt": "x", "answer": None}, 'line 2: "prompt" and "answer" must be texts'),
        ({"messages": "x"}, 'line 2: "messages" must be a list of objects'),
        ({"messages": [1]}, 'line 2: "messages" must be a list of objects'),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": 3}]},
         "messages[1] has content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, {"role": "assistant", "content": "x"}]},
         "messages[0] has a content part of type 'image_url'"),
        ({"messages": [{"role": "usr", "content": "x"}, {"role": "assistant", "content": "x"}]}, "has role 'usr'"),
        ({"prompt": "\ud800", "answer": "x", "raw": 1}, "half a character"),
        ({"prompt_ids": [1]}, 'line 2: "answer_ids" is missing or no list of token ids'),
        ({"answer_ids": [1]}, 'line 2: "prompt_ids" is missing or no list of token ids'),
        ({"prompt_ids": [1, True], "answer_ids": [1]}, '"prompt_ids" is missing or no list of token ids'),
        ({"prompt_ids": [1, 200], "answer_ids": [1]}, '"prompt_ids" has token id 200; valid ids are 0..199'),
        ({"prompt_ids": [1], "answer_ids": [-1]}, '"answer_ids" has token id -1'),
        ({**GOOD, "user": [1]}, '"user" must be a text or a number'),
        ({**GOOD, "user": "x" * 2000}, "cache_salt has 2000 characters"),
        ({**GOOD, "prediction": 3}, '"prediction" must be a text'),
    ],
)  # fmt: skip
def test_a_line_that_is_not_understood_is_refused_with_its_number(tmp_path, row, said):
    wording = load_wording("smollm2-135m") if "half" in said else CHAT
    file = tmp_path / "log.jsonl"
    line = row if isinstance(row, bytes) else (row if isinstance(row, str) else json.dumps(row)).encode()
    file.write_bytes(json.dumps(GOOD).encode() + b"\n" + line)
    with pytest.raises(InputError) as refused:
        read(file, wording)
    assert said in str(refused.value)
    assert str(refused.value).startswith("log.jsonl line 2: ")


def test_text_without_a_tokenizer_and_ids_beyond_measure_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"line 1: it is text; name the model .* --tokenizer"):
        logged(tmp_path, {"prompt": "x", "answer": "y"})
    with pytest.raises(InputError, match=f"valid ids are 0..{MAX_IDS - 1}"):
        logged(tmp_path, {"prompt_ids": [MAX_IDS], "answer_ids": [1]})


def test_files_that_hold_nothing_are_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"cannot read .*none: No such file"):
        read(tmp_path / "none")
    with pytest.raises(InputError, match="no answer to replay: no conversation has one"):
        logged(tmp_path, "")
    with pytest.raises(InputError, match="no answer to replay: 2 empty"):
        logged(tmp_path, say("ux", "a"), say("uy", "a"), wording=PLAIN)
    monkeypatch.setattr(recordings, "MAX_LINE", 1 << 20)
    with pytest.raises(InputError, match="line 2 is longer than 1 MiB"):
        logged(tmp_path, GOOD, {"prompt": "x" * (1 << 20)})


def test_the_embedded_tokenizer_reads_as_the_engine_is_asked(tmp_path):
    """Without its weights; the prompt is what ``render`` gives, and the end token of a chat turn is known."""
    wording = load_wording("smollm2-135m")
    row = {"messages": [{"role": "user", "content": "Name a tree."}, {"role": "assistant", "content": "An oak."}]}
    (found,) = logged(tmp_path, row, wording=wording).recordings
    assert found.prompt.tolist() == wording.template.encode(wording.tokenizer, row["messages"][:1]).tolist()
    assert b"".join(map(wording.tokenizer.token_bytes, found.answer.tolist())) == b"An oak."
    assert wording.tokenizer.id("<|im_end|>") in wording.eos_ids(wording.tokenizer.vocab_size)


def test_a_directory_with_a_tokenizer_alone_is_enough(tmp_path):
    whole = load_wording("smollm2-135m")
    home = tmp_path / "words"
    home.mkdir()
    (home / "tokenizer.json").write_text(whole.tokenizer._backend.to_str())
    for place in (home, home / "tokenizer.json"):
        found = load_wording(place)
        assert found.tokenizer.hash == whole.tokenizer.hash
        assert found.template is None
    (home / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert load_wording(home / "tokenizer.json").template is not None
