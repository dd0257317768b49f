"""Collected text is what the target says, with the hidden states it had, in one go or in several."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny import CONTROLS, byte_tokenizer, random_block, spelt

from augury.engine.engine import Engine
from augury.errors import AuguryError, InputError, ModelError
from augury.models.block import TorchForward
from augury.models.forward import Forward
from augury.models.load import Loaded
from augury.models.native import NativeForward, native_available
from augury.models.runner import Runner, capacity
from augury.models.target import TargetInfo
from augury.models.template import ChatTemplate
from augury.models.tokenizer import Tokenizer
from augury.sampling import Sampling
from augury.train.collect import Collector, collect
from augury.train.invent import LEADS, PASSAGE, Inventor, _library, framed
from augury.train.shards import FORMAT, Conversation, Origin, Shard, existing, write_shard
from augury.tree import DraftTree
from augury.tree import Path as Nodes

VOCAB, CONTEXT, SLOTS, LAYERS, HIDDEN = 272, 320, 4, 3, 48
EOS = 257
CHATML = (
    "{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% for m in messages %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FEW = {"taps": (0, 2), "conversations": 6, "batch": SLOTS, "answer_tokens": 8}


def loaded(template: str | None = CHATML, seed: int = 0, context: int = CONTEXT, digest: str = "a") -> Loaded:
    config, weights = random_block(seed, vocab_size=VOCAB, num_hidden_layers=LAYERS)
    if native_available() is None:
        forward: Forward = NativeForward(config, weights, SLOTS, capacity(context), threads=1)
    else:
        forward = TorchForward(config, weights, SLOTS, capacity(context))
    info = TargetInfo(
        "tiny", "llama", "", "float32", VOCAB, context, HIDDEN, LAYERS, 0, 0, True, False, digest=digest
    )  # fmt: skip
    chat = None if template is None else ChatTemplate(template, "tiny")
    return Loaded(Runner(forward, info, SLOTS), Tokenizer(byte_tokenizer()), chat, (EOS,))


@pytest.fixture(scope="module")
def tiny() -> Loaded:
    return loaded()


@pytest.fixture(scope="module")
def collected(tiny: Loaded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("collected")
    list(collect(tiny, directory, shards=3, **FEW))
    return directory


def inventor(tiny: Loaded, **more: Any) -> Inventor:
    return Inventor(tiny, 0, lambda shard: [tiny.tokenizer.encode("an earlier answer")], **more)


def said(tiny: Loaded, ids: Any) -> str:
    return spelt(tiny.tokenizer, ids)


# ---- how conversations begin -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "before", "after"),
    [
        (CHATML, "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
        ("<s>[INST] {{ messages[0].content | trim }} [/INST]", "<s>[INST] ", " [/INST]"),
        ("{{ messages[0].content }}", "", ""),
        (None, "", ""),
    ],
)
def test_what_stands_around_a_users_turn_is_read_off_the_template(template, before, after):
    model = loaded(template)
    frame = framed(model)
    if template is None:  # no begin token either: what ends a text also stands before the next one
        assert frame.before.tolist() == [EOS]
    else:
        assert said(model, frame.before) == before
    assert said(model, frame.after) == after


def test_a_template_that_hides_what_the_user_says_is_refused():
    with pytest.raises(ModelError, match="does not show what the user says"):
        framed(loaded("<s>{{ messages | length }} messages"))


def test_conversations_begin_in_many_ways_and_all_inside_the_frame(tiny):
    makes = inventor(tiny)
    openings = [makes.opening(1, i, 400) for i in range(400)]
    frame = makes.frame
    assert all(o.prompt[: len(frame.before)].tolist() == frame.before.tolist() for o in openings)
    turns = [said(tiny, o.prompt[len(frame.before) :]) for o in openings]
    bare = sum(not turn for turn in turns)
    leads = sum(turn in LEADS for turn in turns)
    documents = sum("an earlier answer" in turn for turn in turns)
    code = len(turns) - bare - leads - documents
    assert 80 < bare < 160
    assert 120 < leads < 200
    assert 35 < documents < 85
    assert 35 < code < 85
    assert all(o.given == len(o.prompt) - len(frame.before) for o in openings)
    assert 20 < sum(not o.invents for o in openings) < 110, "leads before a text make whole turns"
    assert len(set(turns)) > 150
    kinds = [o.answer.temperature for o in openings]
    assert 200 < kinds.count(0.0) < 280
    assert 50 < kinds.count(0.7) < 110
    assert 50 < kinds.count(1.0) < 110
    assert {(o.turn.temperature, o.turn.top_k, o.turn.top_p) for o in openings} == {(1.0, 50, 0.95)}
    assert len({o.turn.seed for o in openings}) == 400
    assert max(len(o.prompt) for o in openings) < len(frame.before) + max(PASSAGE[1], CONTEXT // 2) + 100


def test_the_first_shard_reads_no_earlier_answers(tiny):
    def none(shard: int) -> Any:
        raise AssertionError("there are none")

    makes = Inventor(tiny, 0, none)
    assert all(len(makes.opening(0, i, 50).prompt) for i in range(50))


def test_an_earlier_answer_is_a_document_without_its_end(tiny):
    makes = Inventor(tiny, 0, lambda shard: [tiny.tokenizer.encode(f"earlier{shard}<|im_end|>")])
    turns = [said(tiny, makes.opening(3, i, 300).prompt[len(makes.frame.before) :]) for i in range(300)]
    found = [turn for turn in turns if "earlier" in turn]
    assert {text[7] for turn in found for text in turn.split("\n\n") if text.startswith("earlier")} == set("012")
    assert not any(control in turn for turn in found for control in CONTROLS)


def test_without_files_of_pythons_library_there_is_no_machine_text(tiny, monkeypatch):
    monkeypatch.setattr("augury.train.invent._library", list)
    makes = inventor(tiny)
    turns = {said(tiny, makes.opening(0, i, 100).prompt[len(makes.frame.before) :]) for i in range(100)}
    assert turns <= {*LEADS, ""}


def test_pythons_library_is_found_and_holds_no_packages_of_others():
    names = _library()
    assert len(names) > 200
    assert not any("site-packages" in str(path) for path in names)


def test_a_target_without_template_begins_with_leads_or_its_begin_token():
    makes = inventor(loaded(None))
    starts = {makes.opening(0, i, 60).prompt[0] for i in range(60)}
    assert starts == {EOS}
    assert all(not len(makes.opening(0, i, 60).after) for i in range(60))


def test_prompts_of_the_caller_are_each_used_once_before_one_is_used_twice(tiny):
    prompts = [f"question {i}<|im_end|>" for i in range(10)]
    makes = inventor(tiny, prompts=prompts)
    asked = [makes.opening(shard, i, 5) for shard in range(4) for i in range(5)]
    assert not any(o.invents for o in asked)
    texts = [said(tiny, o.prompt) for o in asked]
    assert sorted(texts[:10]) == sorted(texts[10:])
    assert len(set(texts)) == 10
    assert sorted(texts[:10]) == sorted(
        said(tiny, tiny.template.encode(tiny.tokenizer, [{"role": "user", "content": p}])) for p in prompts
    )
    assert all(o.prompt.tolist().count(EOS) == 2 for o in asked), "what users typed holds no control token"
    beside = inventor(tiny, prompts=prompts, share=0.5)
    assert 60 < sum("question" in said(tiny, beside.opening(0, i, 200).prompt) for i in range(200)) < 140


def test_turns_that_came_to_nothing_are_thrown_away(tiny):
    makes = inventor(tiny)
    bare = next(o for o in (makes.opening(0, i, 99) for i in range(99)) if not o.given)
    lead = next(o for o in (makes.opening(0, i, 99) for i in range(99)) if o.given and o.invents)
    assert bare.asked([], makes.is_control) is None
    assert bare.asked([EOS], makes.is_control) is None
    assert bare.asked([65, 66, 67, EOS], makes.is_control) is None
    assert lead.asked([EOS], makes.is_control) is None
    whole = bare.asked([65, 66, 67, 68, 258, 69, EOS], makes.is_control)
    assert whole.tolist() == [*bare.prompt, 65, 66, 67, 68, *bare.after], "a turn ends at any control token"


# ---- what is collected -----------------------------------------------------------------------------------------------


def test_a_shard_holds_what_the_target_says_and_the_hidden_states_it_has(collected):
    other = loaded()
    features = other.target.tap((0, 2, LAYERS))
    seen = known_turns = 0
    for path in existing(collected).values():
        shard = Shard(path)
        makes = Inventor(other, 0, lambda n: Shard(existing(collected)[n]).answers)
        samplings = [makes.opening(shard.number, i, 6).answer for i in range(6)]
        for one in shard:
            seen += 1
            prompt, m = one.tokens[: one.prompt_length], len(one.tokens)
            with Engine(other.target, eos_ids=[EOS]) as engine:
                answers = [engine.generate(prompt, s, max_tokens=8).tokens for s in samplings]
            assert tuple(one.answer.tolist()) in answers
            slot = other.target.open()
            other.target.prefill(slot, one.tokens[:-1])
            fresh = torch.from_numpy(features(slot, 0, m - 1)).view(m - 1, 3, HIDDEN)
            assert torch.equal(one.hidden[:-1, :2].float(), fresh[:, :2])
            other.target.release(slot)
            assert not one.hidden[-1].any()
            assert one.known[one.prompt_length - 1 : -1].all(), "every row that an answer's token was drawn from"
            assert not one.known[-1]
            known_turns += bool(one.known[: one.prompt_length - 1].any())
            slot = other.target.open()
            other.target.prefill(slot, one.tokens[: m - 2])
            other.target.verify([slot], [int(one.tokens[m - 2])], [DraftTree.empty()])
            other.target.commit([slot], [Nodes((), 0)])
            last = torch.from_numpy(features(slot, m - 2, m - 1)).view(3, HIDDEN)
            assert torch.equal(one.hidden[-2].float(), last)
            other.target.release(slot)
    assert seen > 10
    assert known_turns, "turns that were still in a slot are not computed again"


def test_collection_goes_on_where_it_stopped_with_the_same_bytes(collected, tmp_path):
    again = loaded()
    run = collect(again, tmp_path, shards=3, **FEW)
    assert next(run).number == 0
    run.close()
    rest = list(collect(loaded(), tmp_path, shards=3, **FEW))
    assert [made.number for made in rest] == [1, 2]
    for number, path in existing(tmp_path).items():
        assert path.read_bytes() == existing(collected)[number].read_bytes()
    assert not list(collect(again, tmp_path, shards=3, **FEW))


def test_a_shard_that_is_interrupted_is_made_anew(collected, tmp_path):
    model = loaded()
    for stop in (1, 3):

        def interrupt(what: str, share: float, stop: int = stop) -> None:
            if what == "answering" and share >= stop / 8:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            list(collect(model, tmp_path, shards=1, progress=interrupt, **FEW))
        assert not list(tmp_path.iterdir())
    list(collect(model, tmp_path, shards=1, **FEW))
    assert existing(tmp_path)[0].read_bytes() == existing(collected)[0].read_bytes()
    assert [model.target.open() for _ in range(SLOTS)], "no slot was lost"


def test_what_progress_raises_is_raised(tiny, tmp_path):
    def breaks(what: str, share: float) -> None:
        if share > 0.5:
            raise BrokenPipeError("nobody listens")

    with pytest.raises(BrokenPipeError, match="nobody listens"):
        list(collect(tiny, tmp_path, shards=1, progress=breaks, **FEW))


def test_what_is_made_is_told(tiny, tmp_path):
    told = []
    (made,) = collect(tiny, tmp_path, shards=1, progress=lambda *said: told.append(said), **FEW)
    shard = Shard(made.path)
    assert (made.conversations, made.tokens) == (len(shard), len(shard.tokens))
    assert made.answer_tokens == sum(map(len, shard.answers)) <= 8 * len(shard)
    assert made.tokens_per_second == made.answer_tokens / made.seconds > 0.0
    assert told[0] == ("inventing prompts", 0.0)
    assert told[-1] == ("answering", 1.0)
    assert [share for _, share in told] == sorted(share for _, share in told)


def test_another_seed_is_another_text_and_no_prompt_is_answered_twice(collected, tiny, tmp_path):
    list(collect(tiny, tmp_path, shards=1, seed=1, **FEW))
    texts = [
        [one.tokens[: one.prompt_length].tobytes() for one in Shard(path)]
        for path in (*existing(collected).values(), *existing(tmp_path).values())
    ]
    assert all(len(set(of)) == len(of) for of in texts)
    assert not any(set(a) & set(b) for a, b in itertools.combinations(texts, 2))
    repeated = list(collect(tiny, tmp_path / "same", shards=1, prompts=["What now?"], **FEW))
    assert repeated[0].conversations == 1


def test_prompts_too_long_for_the_context_are_left_out(tiny, tmp_path):
    (made,) = collect(tiny, tmp_path, shards=1, prompts=["What now?", "x" * CONTEXT], **FEW)
    assert made.conversations == 1
    with pytest.raises(ModelError, match="no user's turn that can be answered in 6 tries of shard 0"):
        list(collect(tiny, tmp_path / "other", shards=1, prompts=["x" * CONTEXT], **FEW))


def test_an_answer_at_the_contexts_end_has_its_hidden_states_too(tiny, tmp_path):
    frame = framed(tiny)
    size = CONTEXT - 2 - len(frame.before) - len(frame.after)
    (made,) = collect(tiny, tmp_path, shards=1, prompts=["x" * size], **FEW)
    assert (made.conversations, made.answer_tokens, made.tokens) == (1, 2, CONTEXT)


def test_hidden_states_that_cannot_be_read_are_an_error_and_not_a_shard_without(tiny, tmp_path, monkeypatch):
    def fails(self: Any, *place: Any) -> Any:
        raise InputError("they are gone")

    monkeypatch.setattr(type(tiny.target.forward), "features", fails)
    with pytest.raises(InputError, match="they are gone"):
        list(collect(tiny, tmp_path, shards=1, **FEW))
    assert not existing(tmp_path)


def test_the_collector_keeps_answers_only(tiny):
    features = tiny.target.tap((0, 2, LAYERS))
    collector = Collector(features, HIDDEN, lambda count: None)
    with Engine(tiny.target, [("collect", collector)], slots=2) as engine:
        engine.generate([65, 66], max_tokens=5, draft=False)
        assert not collector.kept
        result = engine.generate([65, 66], Sampling(), max_tokens=5)
    (key,) = collector.kept
    assert np.frombuffer(key, np.int32).tolist() == [65, 66, *result.tokens]


# ---- shards on disk --------------------------------------------------------------------------------------------------

ORIGIN = Origin("tiny", "a", VOCAB, HIDDEN, (0, 2, LAYERS), 0, "")


def conversation(size: int, prompt: int) -> Conversation:
    hidden = torch.randn(size, 3, HIDDEN).bfloat16()
    return Conversation(np.arange(size, dtype=np.int32), prompt, hidden)


def test_what_is_written_is_read(tmp_path):
    written = [conversation(9, 3), conversation(4, 1), conversation(30, 29)]
    path = write_shard(tmp_path / "new", ORIGIN, 7, written)
    shard = Shard(path, ORIGIN)
    assert (shard.number, shard.origin, len(shard)) == (7, ORIGIN, 3)
    for one, other in zip(written, shard, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.prompt_length == other.prompt_length
        assert torch.equal(one.hidden, other.hidden)
    assert [a.tolist() for a in shard.answers] == [one.answer.tolist() for one in written]
    assert [path.name for path in path.parent.iterdir()] == ["shard-00007.safetensors"]
    with pytest.raises(IndexError):
        shard[3]


def test_shards_are_found_by_name_and_other_files_are_not(tmp_path):
    assert existing(tmp_path / "none") == {}
    for number in (12, 3, 123456):
        write_shard(tmp_path, ORIGIN, number, [conversation(5, 2)])
    (tmp_path / "shard-00004.safetensors.new").write_text("cut off")
    (tmp_path / "notes.txt").write_text("")
    assert list(existing(tmp_path)) == [3, 12, 123456]


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        write_shard(tmp_path / "file" / "in", ORIGIN, 0, [conversation(5, 2)])
    with pytest.raises(InputError, match="cannot list"):
        existing(tmp_path / "file")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"digest": "b", "target": "other"}, "another target \\(other\\), not from tiny"),
        ({"hidden_size": 64}, "another target"),
        ({"taps": (0, 1, LAYERS)}, "taps \\[0, 1, 3\\], not \\[0, 2, 3\\]"),
        ({"seed": 1}, "seed 1, not 0"),
        ({"text": "no questions"}, "with no questions, not with 6 conversations of up to 8 answer tokens; use that"),
    ],
)
def test_a_shard_of_something_else_is_refused_before_anything_is_made(tiny, tmp_path, change, words):
    origin = replace(ORIGIN, **change)
    hidden = torch.zeros(5, 3, origin.hidden_size, dtype=torch.bfloat16)
    write_shard(tmp_path, origin, 1, [Conversation(np.arange(5, dtype=np.int32), 2, hidden)])
    with pytest.raises(InputError, match=words) as refused:
        collect(tiny, tmp_path, shards=2, **FEW)
    assert "\n" not in str(refused.value)
    assert list(existing(tmp_path)) == [1]


def test_an_unknown_digest_is_not_another_target(tmp_path):
    path = write_shard(tmp_path, replace(ORIGIN, digest=""), 0, [conversation(5, 2)])
    assert len(Shard(path, ORIGIN)) == 1


def test_a_damaged_shard_is_refused(tiny, tmp_path):
    path = write_shard(tmp_path, ORIGIN, 0, [conversation(9, 3), conversation(4, 1)])
    whole = path.read_bytes()
    tensors = load_file(path)
    told = safe_open(path, "pt").metadata()

    def refused(words: str, kind: type[AuguryError] = ModelError) -> None:
        with pytest.raises(kind, match=words) as error:
            collect(tiny, tmp_path, shards=2, **FEW)
        assert "\n" not in str(error.value)
        assert path.name in str(error.value)

    for cut in (0, 5, 100, len(whole) - 1):
        path.write_bytes(whole[:cut])
        refused("no sound shard")
    for name, value, words in [
        ("tokens", tensors["tokens"] + VOCAB, "outside 0..271"),
        ("tokens", tensors["tokens"].long(), "tokens is int64"),
        ("starts", tensors["starts"] + 1, "one behind the other"),
        ("starts", torch.tensor([0, 13, 13]), "one behind the other"),
        ("starts", torch.zeros(0, dtype=torch.int64), "one behind the other"),
        ("prompt_lengths", tensors["prompt_lengths"] * 0, "one behind the other"),
        ("prompt_lengths", torch.tensor([3, 4], dtype=torch.int32), "one behind the other"),
        ("hidden", tensors["hidden"][:-1].contiguous(), "hidden is BF16 of shape"),
        ("hidden", tensors["hidden"].float(), "hidden is F32"),
    ]:
        save_file({**tensors, name: value}, path, told)
        refused(words)
    save_file({k: v for k, v in tensors.items() if k != "starts"}, path, told)
    refused("no sound shard")
    for text, words, kind in [
        ("null", "no shard that augury wrote", InputError),
        ("[", "no sound shard", ModelError),
        ('{"format": 99}', f"format 99, this version reads {FORMAT}", InputError),
        (f'{{"format": {FORMAT}}}', "metadata are damaged", ModelError),
    ]:
        save_file(tensors, path, {"augury": text})
        refused(words, kind)
    save_file(tensors, path)
    refused("no shard that augury wrote", InputError)


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shards": -1}, "shards is -1; it must be a whole number, 0 or more"),
        ({"conversations": 0}, "conversations is 0"),
        ({"batch": True}, "batch is True"),
        ({"answer_tokens": 1}, "answer_tokens is 1; it must be a whole number, 2 or more"),
        ({"prompts": "What now?"}, "prompts must be texts"),
        ({"prompts": ["  "]}, "prompts must be texts"),
        ({"prompts": ["a"], "share": 1.5}, "share is 1.5; .* the nearest is 1"),
        ({"taps": (0, LAYERS)}, "a head reads layers 0 to 2 of tiny"),
        ({"taps": (2, 0)}, "ascending"),
    ],
)
def test_what_cannot_be_honoured_is_refused_before_anything_is_made(tiny, tmp_path, options, words):
    with pytest.raises(InputError, match=words):
        collect(tiny, tmp_path, **{"shards": 1, **FEW, **options})
    assert not list(tmp_path.iterdir())


def test_more_than_the_targets_slots_is_refused(tiny, tmp_path):
    with pytest.raises(InputError, match=f"slots is {SLOTS + 1}"):
        list(collect(tiny, tmp_path, shards=1, **{**FEW, "batch": SLOTS + 1}))


@pytest.mark.real
def test_a_real_targets_turns_begin_where_its_template_says(loaded):
    model = Loaded(loaded.target, loaded.tokenizer, loaded.template, loaded.eos_ids)
    frame = framed(model)
    text = b"".join(loaded.tokenizer.token_bytes(int(id)) for id in frame.before).decode()
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_end|>\n<|im_start|>user\n")
    after = b"".join(loaded.tokenizer.token_bytes(int(id)) for id in frame.after).decode()
    assert after == "<|im_end|>\n<|im_start|>assistant\n"
    whole = np.concatenate([frame.before, loaded.tokenizer.encode("What is rain?"), frame.after])
    assert whole.tolist() == loaded.render("What is rain?").tolist()
