import json
from collections import Counter
from pathlib import Path

import pytest

from augury.bench.prompts import Prompt, own, parse, read, select
from augury.errors import InputError, UnknownName

SPEC_BENCH = Path(__file__).parents[3] / "shared" / "data" / "spec_bench_dev.jsonl"


def grams(text: str, size: int = 8) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}


def test_own_prompts_are_three_of_each_kind():
    counts = Counter(p.kind for p in own())
    assert len(counts) == 17
    assert set(counts.values()) == {3}


@pytest.mark.parametrize("kind", ["summarization", "rag", "extraction", "code_edit"])
def test_kinds_that_copy_have_something_to_copy(kind):
    for prompt in select(own(), [kind]):
        assert 150 <= len(prompt.text.split()) <= 600, prompt.id


def test_predicted_code_is_the_code_of_the_prompt():
    edits = select(own(), ["code_edit"])
    assert all(p.prediction and p.prediction.strip() in p.text for p in edits)


@pytest.mark.skipif(not SPEC_BENCH.exists(), reason="Spec-Bench questions are not here")
def test_own_prompts_share_no_eight_words_with_spec_bench():
    theirs = [turn for line in SPEC_BENCH.read_text().splitlines() for turn in json.loads(line)["turns"]]
    known = set().union(*(grams(turn) for turn in theirs))
    assert len(known) > 1000
    assert not set().union(*(grams(p.text) for p in own())) & known


def test_spec_bench_rows_give_their_first_turn(tmp_path):
    rows = [
        {"question_id": 7, "category": "qa", "turns": ["Who?", "And why?"]},
        {"question_id": 8, "category": "rag", "turns": ["Where?"]},
    ]
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    assert read(file) == [Prompt("7", "qa", "Who?", later=("And why?",)), Prompt("8", "rag", "Where?")]


def test_json_is_expected_by_the_name_of_the_file(tmp_path):
    for name, text in (
        ("a.jsonl", "one"),
        ("a.json", "one"),
        ("a.txt", '{"prompt": "one"}'),
        ("a", '{"prompt": "one"}'),
    ):
        (tmp_path / name).write_text('{"prompt": "one"}\r\n')
        assert [p.text for p in read(tmp_path / name)] == [text]


def test_lines_stand_as_they_are(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeff  one \r\n\n{two}\x0c\n".encode())
    assert [p.text for p in read(tmp_path / "a.txt")] == ["  one ", "{two}\x0c"]


def test_plain_lines_are_prompts(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text('\nFirst.\n\n{"second": 2}\n')
    assert [(p.id, p.kind, p.text) for p in read(file)] == [("2", "text", "First."), ("4", "text", '{"second": 2}')]


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c"])
def test_a_sign_that_may_end_a_line_does_not_end_a_row(sign, tmp_path):
    said = f"a{sign}b"
    if sign >= " ":  # JSON has to escape the others, lines of text need not
        (prompt,) = parse(json.dumps({"turns": [said, said]}, ensure_ascii=False), "x.jsonl", rows=True)
        assert (prompt.text, prompt.later) == (said, (said,))
    (tmp_path / "a.txt").write_text(said)
    assert [p.text for p in read(tmp_path / "a.txt")] == [said]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no prompts"),
        ("{", "line 1 is not JSON"),
        ("[1]", "line 1 is a JSON list"),
        ('{"prompt": "a"}\n{"turns": []}', "line 2 has neither"),
        ('{"prompt": " "}', "line 1 has neither"),
        ('{"turns": ["a", 1]}', "line 1 has neither"),
        ('{"prompt": 1}', "line 1 has neither"),
        ("[" * 100_000, "line 1 is not JSON"),
        ('{"prompt": ' + "1" * 5000 + "}", "line 1 is not JSON"),
        ('{"prompt": "a", "prediction": 3}', "a prediction that is not text"),
        ('{"prompt": "a", "id": 1}\n{"prompt": "b", "id": "1"}', "the first is '1'"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text, says):
    with pytest.raises(InputError, match=says):
        parse(text, "x.jsonl", rows=True)


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        read(tmp_path / "missing.jsonl")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match="is not UTF-8 text: byte 0xe9 at 3"):
        read(tmp_path / "latin.txt")


def test_select_takes_the_first_of_each_kind():
    chosen = select(own(), ["qa", "math"], 2)
    assert [p.id for p in chosen] == ["math-1", "math-2", "qa-1", "qa-2"]
    with pytest.raises(UnknownName, match="did you mean 'coding'"):
        select(own(), ["codin"])
