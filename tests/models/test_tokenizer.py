"""Text to ids and back: no character is split, no stranger's text becomes a control token."""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CONTROLS, byte_tokenizer, decoded, spelt
from tokenizers import decoders, models, pre_tokenizers, trainers

from augury.errors import ContextTooLong, InputError, ModelError
from augury.models.tokenizer import MAX_IDS, Tokenizer, tokenizer_from_file, tokenizer_from_gguf

BYTES = Tokenizer(byte_tokenizer())
END = 257

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog's 12 friends don't mind; they're lazy too!",
    "def walk(tree):\n    return [node for node in tree if node.kept]\n\n\n# done\t\t42",
    "Ärger über Öl, señor; naïve café. 你好，世界。你好！ 🎉🔥🚀 👨‍👩‍👧 ∑∫ é 1234567 3.14159",
] * 3  # fmt: skip

# A SentencePiece vocabulary: (piece, score, GGUF token type); bytes for what it cannot spell.
PIECES: list[tuple[str, float, int]] = [
    ("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *((f"<0x{b:02X}>", 0.0, 6) for b in range(256)),
    *((piece, -float(i), 1) for i, piece in enumerate(
        ["▁t", "he", "▁the", "in", "▁a", "re", "on", "er", "▁the▁", "at", "ing", "▁▁", "▁▁▁▁", "the", "▁in",
         "ring", "on▁", "▁o", "n▁t", *"▁thearinogs.é你"])),
]  # fmt: skip


def spm(prefix: bool) -> Tokenizer:
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [p for p, _, _ in PIECES],
        "tokenizer.ggml.scores": [s for _, s, _ in PIECES],
        "tokenizer.ggml.token_type": [k for _, _, k in PIECES],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.add_space_prefix": prefix,
    }
    return tokenizer_from_gguf(fields.get)


SPM, SPM_PREFIX = spm(False), spm(True)


def bpe_fields(pre: str, split: Any) -> tuple[dict[str, Any], tokenizers.Tokenizer]:
    """A byte-level BPE trained on CORPUS, as the library has it and as GGUF metadata."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer, trained.decoder = split, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    trained.add_special_tokens(list(CONTROLS))
    spec = json.loads(trained.to_str())
    vocab = trained.get_vocab()
    tokens = sorted(vocab, key=lambda t: vocab[t])
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if t in CONTROLS else 1 for t in tokens],
        "tokenizer.ggml.merges": [" ".join(m) for m in spec["model"]["merges"]],
    }
    return fields, trained


SMOLLM_SPLIT = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
)
FIELDS, TRAINED = bpe_fields("smollm", SMOLLM_SPLIT)
BPE = tokenizer_from_gguf(FIELDS.get)

TOKENIZERS = {"bytes": BYTES, "bpe": BPE, "spm": SPM, "spm-prefix": SPM_PREFIX}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" the ring🎉你é\n"), max_size=40)
each = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())


def in_pieces(tokenizer: Tokenizer, ids: Any, cuts: list[int]) -> list[str]:
    stream = tokenizer.incremental()
    return [*(stream.push(part) for part in np.split(np.asarray(ids), sorted(cuts))), stream.flush()]


@each
@given(text=TEXTS)
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    text = text.replace("▁", "_")  # SentencePiece spells a space so, by design the two are one
    assert decoded(tokenizer, tokenizer.encode(text, special=False)) == text


@each
@given(text=TEXTS, data=st.data())
def test_no_character_is_split(tokenizer: Tokenizer, text: str, data: st.DataObject) -> None:
    text = text.replace("▁", "_").replace("\ufffd", "?")
    ids = tokenizer.encode(text, special=False)
    stream = tokenizer.incremental()
    pieces = [stream.push([id]) for id in ids]
    assert stream.flush() == ""
    assert "".join(pieces) == text
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=4))
    assert "".join(in_pieces(tokenizer, ids, cuts)) == text


@each
@given(data=st.data())
def test_pieces_of_any_ids_join_to_the_whole(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30))
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=4))
    assert "".join(in_pieces(tokenizer, ids, cuts)) == decoded(tokenizer, ids)


@each
@given(text=TEXTS)
def test_decoding_is_the_librarys(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, special=False)
    assert decoded(tokenizer, ids) == tokenizer._backend.decode(ids.tolist())


def test_an_unfinished_character_is_shown_at_the_end() -> None:
    ids = BYTES.encode("a🎉", special=False)
    assert len(ids) == 5
    stream = BYTES.incremental()
    assert [stream.push([i]) for i in ids[:4]] == ["a", "", "", ""]
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_a_control_token_ends_an_unfinished_character() -> None:
    ids = [*BYTES.encode("🎉", special=False)[:2], END, *BYTES.encode("b", special=False)]
    stream = BYTES.incremental()
    assert [stream.push([i]) for i in ids] == ["", "", "\ufffd", "b"]
    assert decoded(BYTES, ids) == "\ufffdb"


def test_a_leading_space_goes_at_the_start_of_a_text_only() -> None:
    ids = SPM_PREFIX.encode("the ring")
    assert decoded(SPM_PREFIX, ids) == "the ring"
    assert decoded(SPM, ids) == " the ring"
    behind = SPM_PREFIX.incremental(SPM_PREFIX.encode("in"))
    assert behind.push(ids) + behind.flush() == " the ring"
    after_begin = SPM_PREFIX.incremental([1])
    assert after_begin.push(ids) == "the ring"


def test_ids_beyond_the_vocabulary_are_no_text() -> None:
    assert decoded(BYTES, [70, 5000, 70]) == decoded(BYTES, [70, 70])
    assert BYTES.token_bytes(5000) == b""
    assert BYTES.token_bytes(END) == b"<|im_end|>"


# ---- control tokens ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
def test_control_tokens_are_read_only_when_asked(tokenizer: Tokenizer) -> None:
    end = tokenizer.id("<|im_end|>")
    text = "a<|im_end|>b"
    assert end in tokenizer.encode(text, special=True)
    assert end not in tokenizer.encode(text, special=False)
    assert decoded(tokenizer, tokenizer.encode(text, special=False)) == text
    assert end in tokenizer.encode(text, special=True)  # asking for one does not change the other


@pytest.mark.parametrize("tokenizer", [BYTES, BPE, SPM, SPM_PREFIX], ids=["bytes", "bpe", "spm", "spm-prefix"])
@given(typed=st.lists(st.sampled_from(["a", " ", "<|im_end|>", "<|im_", "end|>", "</s>", "<s>", "the"])).map("".join))
def test_guarded_text_has_no_control_tokens(tokenizer: Tokenizer, typed: str) -> None:
    (mark,) = [t for t in tokenizer.special.values() if t in ("<|im_start|>", "</s>")]
    ids = tokenizer.encode_guarded(lambda guard: f"{mark}in {guard(typed)} the{mark}")
    found = [i for i in ids.tolist() if i in tokenizer.special]
    assert found == [tokenizer.id(mark)] * 2
    shown = spelt(tokenizer, ids)
    assert shown.replace(" ", "") == f"{mark}in {typed} the{mark}".replace(" ", "")


PARTS = ["<|im_", "end|>", "<|", "|>", ">", "<", "</", "s>", "im_end", "<|im_end|>", " ", "\n", "a", ""]


@pytest.mark.parametrize("tokenizer", [BYTES, BPE, SPM], ids=["bytes", "bpe", "spm"])
@given(first=st.lists(st.sampled_from(PARTS)).map("".join), second=st.lists(st.sampled_from(PARTS)).map("".join))
def test_guarded_texts_side_by_side_spell_no_control_token(tokenizer: Tokenizer, first: str, second: str) -> None:
    (mark,) = [t for t in tokenizer.special.values() if t in ("<|im_start|>", "</s>")]
    for glue in ("", ">", "<|"):
        ids = tokenizer.encode_guarded(
            lambda guard, glue=glue: f"{mark}{glue}{guard(first).strip()}{guard(second).strip()}{glue}{mark}"
        )
        assert [i for i in ids.tolist() if i in tokenizer.special] == [tokenizer.id(mark)] * 2
        assert spelt(tokenizer, ids) == f"{mark}{glue}{first.strip()}{second.strip()}{glue}{mark}"


def test_texts_that_only_look_like_a_part_of_a_control_token_cost_nothing() -> None:
    tokenizer = Tokenizer(byte_tokenizer())  # one without a twin
    ids = tokenizer.encode_guarded(lambda guard: f"<s>{guard('> quoted <')}<|im_end|>{guard('</')}")
    assert ids.tolist() == tokenizer.encode("<s>> quoted <<|im_end|></").tolist()
    assert "_renamed" not in vars(tokenizer)
    tokenizer.encode_guarded(lambda guard: guard("<") + guard("s>"))
    assert "_renamed" in vars(tokenizer)


def test_half_characters_are_refused_in_one_line() -> None:
    for encode in (
        BYTES.encode,
        lambda text: BYTES.encode(text, special=False),
        lambda text: BYTES.encode_guarded(lambda guard: guard(text)),
    ):
        with pytest.raises(InputError, match=r"half a character, U\+D83C, at 2") as refused:
            encode("ab\ud83c")
        assert "\n" not in str(refused.value)
        assert "\ud83c" not in str(refused.value)


def test_guarding_does_not_move_token_borders() -> None:
    ids = BPE.encode_guarded(lambda guard: f"<|im_start|>the {guard('quick')} brown fox")
    np.testing.assert_array_equal(ids, BPE.encode("<|im_start|>the quick brown fox"))
    twin = BPE.encode_guarded(lambda guard: f"<|im_start|>the {guard('quick<s>')} brown fox")
    plain = BPE.encode("the quick<s> brown fox", special=False)
    np.testing.assert_array_equal(twin[1:], plain)


def test_the_begin_token_is_added_at_a_start_only() -> None:
    assert SPM.encode("the", start=True).tolist()[0] == 1
    assert 1 not in SPM.encode("the")
    assert BPE.encode("the", start=True).tolist() == BPE.encode("the").tolist()


# ---- GGUF ----------------------------------------------------------------------------------------------------


@given(text=TEXTS)
def test_gguf_bpe_is_the_tokenizer_it_came_from(text: str) -> None:
    assert BPE.encode(text).tolist() == TRAINED.encode(text, add_special_tokens=False).ids


def test_gguf_bpe_was_worth_comparing() -> None:
    assert len(BPE.encode(CORPUS[0])) < len(CORPUS[0]) / 2


def spm_by_hand(text: str) -> list[int]:
    """SentencePiece's rule written down: join the neighbours whose union scores best, leftmost first."""
    ids = {p: i for i, (p, _, _) in enumerate(PIECES)}
    scores = {p: s for p, s, k in PIECES if k == 1}
    parts = list(text.replace(" ", "▁"))
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in scores]
        if not pairs:
            break
        i = min(pairs)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    found: list[int] = []
    for part in parts:
        found += [ids[part]] if part in ids else [ids[f"<0x{b:02X}>"] for b in part.encode()]
    return found


@settings(max_examples=300)
@given(text=st.text(st.sampled_from("thearinogs é你 🎉x"), max_size=30))
def test_gguf_sentencepiece_is_its_rule(text: str) -> None:
    assert SPM.encode(text).tolist() == spm_by_hand(text)
    assert SPM_PREFIX.encode(text).tolist() == (spm_by_hand(" " + text) if text else [])


@pytest.mark.parametrize(
    ("pre", "wanted"),
    [
        ("smollm", ["ab", "'s", " ", "1", "2", "3", "4", " CD", "  ", " x", "\n", "\n", "y", "!?"]),
        ("gpt-2", ["ab", "'s", " 1234", " CD", "  ", " x", "\n", "\n", "y", "!?"]),
        ("llama-bpe", ["ab", "'s", " ", "123", "4", " CD", "  ", " x", "\n\n", "y", "!?"]),
        ("qwen2", ["ab", "'s", " ", "1", "2", "3", "4", " CD", "  ", " x", "\n\n", "y", "!?"]),
    ],
)
def test_words_of_each_pre_tokenizer(pre: str, wanted: list[str]) -> None:
    backend = tokenizer_from_gguf((FIELDS | {"tokenizer.ggml.pre": pre}).get)._backend
    text = "ab's 1234 CD   x\n\ny!?"
    cuts = backend.pre_tokenizer.pre_tokenize_str(text)
    assert [text[a:b] for _, (a, b) in cuts] == wanted


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tokenizer.ggml.pre": "tekken"}, "'tekken' is not known; known are gpt-2, llama-bpe, qwen2, smollm"),
        ({"tokenizer.ggml.pre": None}, "None is not known"),
        ({"tokenizer.ggml.model": "t5"}, "'t5' is not known; known are gpt2 and llama"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.merges": ["a b c"]}, "not two tokens"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.scores"),
    ],
)
def test_unknown_gguf_tokenizers_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        tokenizer_from_gguf((FIELDS | changes).get)


# ---- long texts ----------------------------------------------------------------------------------------------


@each
def test_a_long_text_has_the_ids_of_its_parts(tokenizer: Tokenizer) -> None:
    text = CORPUS[1] * 100 + "<|im_end|>" + CORPUS[2] * 100
    for special in (True, False):
        backend = tokenizer._backend if special else tokenizer._plain
        wanted = backend.encode(text, add_special_tokens=True).ids
        assert tokenizer.encode(text, special, start=True).tolist() == wanted
        assert tokenizer.encode(text, special, start=True, limit=len(wanted)).tolist() == wanted


@each
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_what_fits_is_never_refused(tokenizer: Tokenizer, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(TEXTS, min_size=1, max_size=20))) * data.draw(st.integers(1, 300))
    ids = tokenizer.encode(text)
    assert tokenizer.encode(text, limit=len(ids)).tolist() == ids.tolist()
    limit = data.draw(st.integers(0, len(ids)))
    with contextlib.suppress(ContextTooLong):
        assert tokenizer.encode(text, limit=limit).tolist() == ids.tolist()


def test_a_text_of_far_too_many_tokens_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    text, backend = CORPUS[0] * 10_000, BPE._backend
    read: list[int] = []

    class Counting:
        def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
            read.append(len(texts[0]))
            return backend.encode_batch_fast(texts, **options)

    tokenizer = Tokenizer(backend)
    monkeypatch.setattr(tokenizer, "_backend", Counting())
    with pytest.raises(ContextTooLong, match=r"the prompt has at least \d+ tokens, the context holds 1000"):
        tokenizer.encode(text, limit=1000)
    with pytest.raises(ContextTooLong):
        tokenizer.encode_guarded(lambda guard: guard(text), limit=1000)
    assert sum(read) < 50_000  # of 960,000 characters, twice


# ---- files ---------------------------------------------------------------------------------------------------


def test_from_file(tmp_path: Path) -> None:
    TRAINED.save(str(tmp_path / "tokenizer.json"))
    read = tokenizer_from_file(tmp_path / "tokenizer.json")
    assert read.encode(CORPUS[2]).tolist() == BPE.encode(CORPUS[2]).tolist()
    assert read.hash == BPE.hash
    assert read.vocab_size == BPE.vocab_size == len(FIELDS["tokenizer.ggml.tokens"])
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(ModelError, match=r"broken\.json is not a tokenizer"):
        tokenizer_from_file(tmp_path / "broken.json")


@pytest.mark.parametrize("place", ["vocab", "added_tokens"])
@pytest.mark.parametrize("id", [MAX_IDS, 2**31, 10**30])
def test_an_id_beyond_all_measure_is_refused_at_once(tmp_path: Path, place: str, id: int) -> None:
    spec = json.loads(TRAINED.to_str())
    if place == "vocab":
        spec["model"]["vocab"]["far"] = id
    else:
        spec["added_tokens"].append(spec["added_tokens"][0] | {"content": "far", "id": id})
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(ModelError, match=rf"^tokenizer\.json gives token 'far' the id {id}; ids must lie below"):
        tokenizer_from_file(tmp_path / "tokenizer.json")


def test_a_list_of_too_many_tokens_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("augury.models.tokenizer.MAX_IDS", 2)
    spec = {"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", 0.0], ["c", 0.0]]}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(ModelError, match=r"^tokenizer\.json has 3 tokens, at most 2 are allowed"):
        tokenizer_from_file(tmp_path / "tokenizer.json")


def test_the_hash_tells_two_swapped_ids() -> None:
    tokens = list(FIELDS["tokenizer.ggml.tokens"])
    tokens[300], tokens[301] = tokens[301], tokens[300]
    other = tokenizer_from_gguf((FIELDS | {"tokenizer.ggml.tokens": tokens}).get)
    assert other.vocab_size == BPE.vocab_size
    assert other.hash != BPE.hash


def test_a_decoder_that_is_not_bytes_is_refused_by_name() -> None:
    backend = byte_tokenizer()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="WordPiece is not known"):
        Tokenizer(backend)
