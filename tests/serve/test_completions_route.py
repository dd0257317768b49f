"""Completions, tokens and models as clients ask for them."""

from __future__ import annotations

import pytest

NAME = "smollm2-135m"


def test_every_kind_of_prompt_is_answered_like_the_engine(server, client):
    engine = server.engine
    ids = engine.tokenizer.encode("The capital of France", special=True, start=True).tolist()
    wanted = engine.generate(ids, max_tokens=8).text
    for prompt in ("The capital of France", ids, ["The capital of France"], [ids]):
        answer = client.completions.create(model=NAME, prompt=prompt, max_tokens=8, temperature=0)
        assert [c.text for c in answer.choices] == [wanted]
        assert answer.usage.prompt_tokens == len(ids)


def test_prompts_and_answers_are_numbered_in_order(client):
    answer = client.completions.create(
        model=NAME, prompt=["One", "Two words"], n=2, max_tokens=3, temperature=0, echo=True
    )
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert [c.text.startswith("One") for c in answer.choices] == [True, True, False, False]
    assert answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens == 3


def test_sixteen_tokens_when_nothing_is_said(client):
    answer = client.completions.create(model=NAME, prompt="A", temperature=0, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16


def test_a_stream_is_the_same_text(client):
    asked = {"model": NAME, "prompt": "The capital of France", "max_tokens": 8, "temperature": 0, "echo": True}
    whole = client.completions.create(**asked).choices[0].text
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks[:-1]) == whole
    assert chunks[-2].choices[0].finish_reason == "length"
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 8)


def test_token_ids_of_a_prompt_are_told_once(server, client):
    asked = {"model": NAME, "prompt": ["One", "Two words"], "max_tokens": 4, "temperature": 0}
    more = {"return_token_ids": True, "ignore_eos": True}
    prompts = [server.engine.tokenizer.encode(text, start=True).tolist() for text in asked["prompt"]]
    whole = client.completions.create(**asked, extra_body=more).choices
    assert [c.prompt_token_ids for c in whole] == prompts
    for echo in (False, True):
        frames = [c.choices[0] for c in client.completions.create(**asked, echo=echo, stream=True, extra_body=more)]
        told = [(c.index, c.prompt_token_ids) for c in frames if "prompt_token_ids" in c.model_extra]
        assert sorted(told) == [*enumerate(prompts)]
        for index, one in enumerate(whole):
            assert [id for c in frames if c.index == index for id in c.token_ids] == one.token_ids


def test_logprobs_are_the_targets_one_a_token(server, client):
    engine = server.engine
    prompt = engine.tokenizer.encode("1 2 3 4 1 2 3 4 1 2", special=True).tolist()
    plain = engine.generate(prompt, max_tokens=12, logprobs=2, draft=False)
    asked = {"model": NAME, "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 2}
    told = client.completions.create(**asked).choices[0].logprobs
    assert told.token_logprobs == pytest.approx([e.logprob for e in plain.logprobs], abs=0.05)
    assert "".join(told.tokens) == plain.text
    assert told.text_offset == [len("".join(told.tokens[:i])) for i in range(12)]
    streamed = [c.choices[0].logprobs for c in client.completions.create(**asked, stream=True)]
    assert [t for part in streamed for t in part.tokens] == told.tokens
    assert [o for part in streamed for o in part.text_offset] == told.text_offset


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [49152]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a"] * 129}, "n"),
        ({"prompt": [1] * 500_000}, "prompt"),
        ({"prompt": [[1] * 2000] * 100}, "prompt"),
        ({"prompt": ["word " * 1100] * 128}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
    ],
)
def test_a_bad_prompt_is_named(server, given, param):
    answer = server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2, **given})
    assert (answer.status, answer.error["param"]) == (400, param)


def test_tokens_as_vllm_and_as_llama_server_ask(server):
    text = "Hello <|im_end|> world"
    engine = server.engine
    special = engine.tokenizer.encode(text, special=True, start=True).tolist()
    told = server.ask("POST", "/tokenize", {"prompt": text, "return_token_strs": True}).json
    assert (told["tokens"], told["count"], told["max_model_len"]) == (special, len(special), 1024)
    assert len(told["token_strs"]) == len(special)
    llama = server.ask("POST", "/tokenize", {"content": text, "parse_special": False, "with_pieces": True}).json
    assert "".join(t["piece"] for t in llama["tokens"]) == text
    assert len(llama["tokens"]) > len(special)
    assert server.ask("POST", "/detokenize", {"tokens": special}).json == {"prompt": text, "content": text}
    messages = [{"role": "user", "content": "Hi"}]
    chat = server.ask("POST", "/tokenize", {"messages": messages}).json["tokens"]
    assert chat == engine.render(messages).tolist()
    open_ended = server.ask("POST", "/tokenize", {"messages": messages, "add_generation_prompt": False}).json["tokens"]
    assert len(open_ended) < len(chat)
    assert chat[: len(open_ended)] == open_ended


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}), ("/tokenize", {"prompt": "a", "content": "b"}), ("/tokenize", {"messages": []}),
        ("/detokenize", {"tokens": [49152]}), ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": "a"}),
        ("/detokenize", {}), ("/detokenize", {"tokens": [1] * 131_073}), ("/tokenize", {"prompt": "a " * 600_000}),
        ("/tokenize", {"content": "1" * 140_000}), ("/tokenize", {"content": "1" * 1_000_000, "with_pieces": True}),
        ("/tokenize", {"messages": [{"role": "user", "content": "1" * 100_000}]}),
    ],
)  # fmt: skip
def test_bad_tokens_are_refused(server, path, body):
    answer = server.ask("POST", path, body)
    assert answer.status == 400
    assert answer.error["param"]


def test_models_under_every_name(server, client):
    models = client.models.list().data
    assert [m.id for m in models] == [NAME, "other/name"]
    assert (models[0].object, models[0].owned_by, models[0].max_model_len) == ("model", "augury", 1024)
    assert client.models.retrieve("other/name").id == "other/name"
    assert server.ask("GET", "/models/other/name").json["id"] == "other/name"
    assert server.ask("GET", "/v1/models/nobody").error["code"] == "model_not_found"
    answer = server.chat({"model": "other/name"}).json
    assert answer["model"] == NAME
