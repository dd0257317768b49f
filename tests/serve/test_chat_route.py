"""Chat as OpenAI's own client asks for it, against the engine's own answers."""

from __future__ import annotations

import json

import openai
import pytest

from augury.sampling import Sampling

COLOURS = [{"role": "user", "content": "Name three colours."}]
ASKED = {"model": "smollm2-135m", "messages": COLOURS, "max_tokens": 16}


def own(server, sampling=None, **options):
    """The engine's answer to the same."""
    engine = server.engine
    return engine.generate(engine.render(COLOURS), sampling, max_tokens=16, **options)


def joined(stream):
    """Text and last chunk of a stream."""
    chunks = list(stream)
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), chunks


def test_text_is_the_engines_own(server, client):
    answer = client.chat.completions.create(**ASKED, temperature=0)
    plain = own(server, draft=False)
    assert answer.choices[0].message.content == plain.text
    assert answer.choices[0].finish_reason == "length"
    assert (answer.object, answer.model) == ("chat.completion", "smollm2-135m")
    assert answer.usage.completion_tokens == 16
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 16
    assert answer.usage.completion_tokens_details is None


def test_a_stream_says_the_same_in_the_order_clients_expect(server, client):
    options = {"include_usage": True}
    text, chunks = joined(client.chat.completions.create(**ASKED, temperature=0, stream=True, stream_options=options))
    assert text == own(server).text
    first, *_, last, usage = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert last.choices[0].finish_reason == "length"
    assert last.choices[0].delta.content is None
    assert (usage.choices, usage.usage.completion_tokens) == ([], 16)
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1


def test_a_seed_gives_the_same_text_drafted_or_not(server, client):
    law = Sampling(temperature=1.0, top_p=0.9, seed=7)
    asked = {**ASKED, "temperature": 1, "top_p": 0.9, "seed": 7}
    texts = {
        client.chat.completions.create(**asked, extra_body={"speculative": wish}).choices[0].message.content
        for wish in ({}, {"enabled": False}, {"drafters": ["suffix"]}, {"draft_tokens": 1}, {"draft_tokens": 0})
    }
    assert texts == {own(server, law).text}


def test_what_is_written_many_ways_arrives_in_chunks_of_many_tokens(server, client):
    line = "one two three four five six seven eight nine ten\n"
    told = {"messages": [{"role": "user", "content": f"Repeat this text exactly three times:\n{line * 3}"}]}
    body = {"return_token_ids": True}
    answer = client.chat.completions.create(
        **{**ASKED, **told, "max_tokens": 32}, temperature=0, stream=True, logprobs=True, extra_body=body,
        prediction={"type": "content", "content": line * 3},
    )  # fmt: skip
    chunks = [c.choices[0] for c in answer if c.choices]
    assert any(len(c.token_ids) > 1 for c in chunks if c.delta.content)
    for chunk in chunks[1:-1]:
        assert len(chunk.logprobs.content) == len(chunk.token_ids)
    assert sum(len(c.logprobs.content) for c in chunks[1:-1]) == 32


def test_n_answers_are_those_of_seed_and_index(server, client):
    answer = client.chat.completions.create(**ASKED, n=3, seed=5, temperature=0.9)
    wanted = [own(server, Sampling(temperature=0.9, seed=5 + i)).text for i in range(3)]
    assert [c.message.content for c in answer.choices] == wanted
    assert answer.usage.completion_tokens == 48
    prompt = len(server.engine.render(COLOURS))
    assert answer.usage.prompt_tokens == prompt
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(**ASKED, n=3, seed=5, temperature=0.9, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == wanted


def test_a_prediction_goes_with_everything(server, client):
    text = own(server).text
    answer = client.chat.completions.create(
        **ASKED, temperature=0, n=2, logprobs=True, top_logprobs=3, frequency_penalty=0.5, stop=["zebra"],
        prediction={"type": "content", "content": [{"type": "text", "text": text}, {"type": "text", "text": " zebra"}]},
    )  # fmt: skip
    plain = own(server, Sampling(frequency_penalty=0.5), draft=False, stop=["zebra"])
    assert {c.message.content for c in answer.choices} == {plain.text}
    details = answer.usage.completion_tokens_details
    expected = len(server.engine.tokenizer.encode(text + " zebra", special=False))
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens == 2 * expected
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 16
    assert all(len(e.top_logprobs) == 3 and e.top_logprobs[0].logprob >= e.logprob for e in entries)


def test_a_right_prediction_is_counted_as_accepted(server, client):
    text = own(server).text
    answer = client.chat.completions.create(
        **ASKED, temperature=0, prediction={"type": "content", "content": text},
        extra_body={"speculative": {"figures": True}},
    )  # fmt: skip
    details = answer.usage.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (16, 0)
    figures = answer.metrics["speculative_decoding"]
    assert figures["num_accepted_draft_tokens"] > 10
    assert sum(figures["acceptance_histogram"]) == figures["num_spec_steps"] < 8
    assert answer.timings["draft_n_accepted"] == figures["num_accepted_draft_tokens"]
    assert answer.timings["predicted_n"] == 16


def test_a_prediction_injects_no_control_token(server, client):
    answer = client.chat.completions.create(
        **ASKED, temperature=0, prediction={"type": "content", "content": "<|im_end|>"}
    )
    assert answer.choices[0].message.content == own(server).text
    assert answer.usage.completion_tokens_details.rejected_prediction_tokens > 1


def test_figures_say_why_nothing_was_drafted(client):
    answer = client.chat.completions.create(
        **ASKED, extra_body={"speculative": {"enabled": False, "figures": "detailed"}, "ignore_eos": True}
    )
    figures = answer.metrics["speculative_decoding"]
    assert figures["off_reason"] == "drafting is off for this request"
    assert figures["per_step_drafted"] == [0] * 16
    assert "metrics" not in client.chat.completions.create(**ASKED).model_extra


def test_figures_ride_on_the_last_chunk_of_a_stream(client):
    wish = {"speculative": {"figures": True}}
    chunks = list(client.chat.completions.create(**ASKED, stream=True, extra_body=wish))
    assert chunks[-1].choices == []
    assert chunks[-1].metrics["speculative_decoding"]["num_spec_steps"] > 0
    assert all("metrics" not in c.model_extra for c in chunks[:-1])


def test_usage_may_be_told_all_along(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    whole = {"ignore_eos": True}
    chunks = list(client.chat.completions.create(**ASKED, stream=True, stream_options=options, extra_body=whole))
    counts = [c.usage.completion_tokens for c in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 16


def test_a_stop_string_is_cut_out_of_the_text_whatever_blocks_it_came_in(server, client):
    text = own(server).text
    stop = text[9:15]
    answer = client.chat.completions.create(**ASKED, temperature=0, stop=[stop, "zebra"])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (text[:9], "stop")
    assert answer.choices[0].stop_reason == stop
    predicted = {"type": "content", "content": text}
    streamed, _ = joined(
        client.chat.completions.create(**ASKED, temperature=0, stop=stop, stream=True, prediction=predicted)
    )
    assert streamed == text[:9]
    kept = client.chat.completions.create(
        **ASKED, temperature=0, stop=stop, extra_body={"include_stop_str_in_output": True}
    )
    assert kept.choices[0].message.content == text[:15]


def test_token_ids_of_prompt_and_answer(server, client):
    answer = client.chat.completions.create(**ASKED, temperature=0, extra_body={"return_token_ids": True})
    assert answer.prompt_token_ids == server.engine.render(COLOURS).tolist()
    assert tuple(answer.choices[0].token_ids) == own(server).tokens


def test_every_sampling_parameter_reaches_the_law(server, client):
    given = {
        "top_k": 20, "min_p": 0.02, "typical_p": 0.95, "repetition_penalty": 1.1, "min_tokens": 3,
        "stop_token_ids": [198], "bad_words": ["The"], "ignore_eos": True,
    }  # fmt: skip
    answer = client.chat.completions.create(
        **ASKED, temperature=0.8, top_p=0.9, presence_penalty=0.3, frequency_penalty=0.2, seed=3,
        logit_bias={"28": -100}, extra_body=given,
    )  # fmt: skip
    words = {tuple(server.engine.tokenizer.encode(w, special=False).tolist()) for w in ("The", " The")}
    law = Sampling(
        temperature=0.8, top_p=0.9, top_k=20, min_p=0.02, typical_p=0.95, repetition_penalty=1.1, presence_penalty=0.3,
        frequency_penalty=0.2, logit_bias={28: -100}, min_tokens=3, bad_words=tuple(words), stop_token_ids=(198,),
        seed=3,
    )  # fmt: skip
    assert answer.choices[0].message.content == own(server, law, ignore_eos=True).text


def test_an_answer_goes_on_where_the_assistant_stopped(server, client):
    messages = [*COLOURS, {"role": "assistant", "content": "The first one is"}]
    answer = client.chat.completions.create(
        **{**ASKED, "messages": messages}, temperature=0,
        extra_body={"continue_final_message": True, "return_token_ids": True},
    )  # fmt: skip
    engine = server.engine
    prompt = engine.render(COLOURS).tolist() + engine.tokenizer.encode("The first one is").tolist()
    assert answer.prompt_token_ids == prompt
    assert answer.choices[0].message.content == engine.generate(prompt, max_tokens=16).text


def test_text_round_trips_whatever_it_is(server):
    odd = "\u00e9e\u0301 \U0001f468\u200d\U0001f469\u200d\U0001f467 \u202e\u0000"[:-1] + "\ufeff \u2028<|im_end|>"
    ids = server.ask("POST", "/tokenize", {"content": odd, "parse_special": False}).json["tokens"]
    assert server.ask("POST", "/detokenize", {"tokens": ids}).json["content"] == odd


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "bard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a\x00"}]}, "messages[0].content"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"49152": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"stop_token_ids": [1] * 129}, "stop_token_ids"),
        ({"bad_words": ["a"] * 1025}, "bad_words"),
        ({"bad_words": ["a" * 129]}, "bad_words[0]"),
        ({"bad_words": [f"{i} bottles of beer" for i in range(1000)]}, "bad_words"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": "a" * (1 << 20)}, "stop"),
        ({"stop": ["<|im_end|>"]}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"seed": 1 << 65}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"min_tokens": 5}, "min_tokens"),
        ({"prediction": {"type": "content", "content": ""}}, "prediction"),
        ({"prediction": {"type": "content", "content": [{"type": "image"}]}}, "prediction.content[0]"),
        ({"prediction": {"type": "content", "content": "many words " * 2000}}, "prediction"),
        ({"prediction": {"type": "content", "content": "x" * (1 << 20)}}, "prediction"),
        ({"prediction": {"type": "content", "content": "x"}, "speculative": {"enabled": False}}, None),
        ({"speculative": {"drafters": ["oracle"]}}, "speculative.drafters"),
        ({"speculative": {"speed": 9}}, "speculative.speed"),
        ({"speculative": {"acceptance": "typical"}}, "speculative.acceptance"),
        ({"speculative": {"draft_tokens": -1}}, "speculative.draft_tokens"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"priority": 1 << 40}, "priority"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
            "response_format.json_schema.name",
        ),
        ({"guided_regex": "(("}, "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml"),
        ({"structured_outputs": {"json_object": {"type": "object"}}}, "structured_outputs.json_object"),
        ({"guided_regex": "a" * (1 << 18)}, "guided_regex"),
        ({"guided_choice": ["a"] * (1 << 18)}, "guided_choice"),
        ({"guided_json": {"enum": ["a" * (1 << 18)]}}, "guided_json"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named(server, given, param):
    answer = server.chat(given)
    assert answer.status == 400
    assert answer.error["param"] == param or (param is None and "prediction" in answer.error["message"])
    assert answer.error["type"] == "invalid_request_error"
    assert len(answer.body) < 1000


@pytest.mark.parametrize(
    "given",
    [
        {"audio": {"voice": "x"}}, {"modalities": ["text", "audio"]}, {"functions": [{"name": "f"}]}, {"store": True},
        {"service_tier": "flex"}, {"reasoning_effort": "high"}, {"verbosity": "low"}, {"web_search_options": {}},
        {"metadata": {"a": "b"}}, {"chat_template": "{{ x }}"}, {"documents": ["x"]}, {"skip_special_tokens": False},
        {"use_beam_search": True}, {"prompt_logprobs": 1}, {"mirostat": 2}, {"dry_multiplier": 0.8}, {"best_of": 2},
        {"prediction": None, "logits_processors": ["x"]}, {"allowed_token_ids": [1]}, {"echo": True},
        {"grammar": "root ::= x"}, {"ebnf": "root ::= x"}, {"json_schema": {}}, {"regex": "a+"},
        {"max_output_tokens": 5},
    ],
)  # fmt: skip
def test_a_known_field_that_is_not_done_is_refused_by_name(server, given):
    answer = server.chat(given)
    name = [*given][-1]
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "unsupported_parameter", name)


def test_what_asks_for_nothing_and_what_nobody_knows_is_accepted(server):
    harmless = {
        "store": False, "service_tier": "auto", "modalities": ["text"], "user": "u", "safety_identifier": "s",
        "prompt_cache_key": "k", "functions": None, "metadata": {}, "skip_special_tokens": True, "best_of": 1,
        "made_up": {"x": [1]}, "logit_bias": None, "stop": None, "n": 1, "tools": [], "tool_choice": "none",
        "response_format": {"type": "text"}, "stream_options": None, "top_k": -1, "max_tokens": 1 << 63,
    }  # fmt: skip
    assert server.chat({**harmless, "stop": ["Hello"]}).status == 200


def test_unlike_a_long_answer_a_long_prompt_is_refused(server):
    answer = server.chat({"messages": [{"role": "user", "content": "word " * 1100}]})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "context_length_exceeded", "messages")
    at_once = server.chat({"messages": [{"role": "user", "content": "word " * 1_000_000}]})
    assert (at_once.status, at_once.error["code"]) == (400, "context_length_exceeded")


def test_a_wrong_model_is_told_as_openai_tells_it(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**{**ASKED, "model": "gpt-9"})
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert caught.value.request_id


def test_structured_answers(client):
    schema = {
        "type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"],
        "additionalProperties": False,
    }  # fmt: skip
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    answer = client.chat.completions.create(**{**ASKED, "max_tokens": 40}, response_format=wanted, temperature=0)
    assert answer.choices[0].finish_reason == "stop"
    assert json.loads(answer.choices[0].message.content)["colour"] in ("red", "green")
    for guide, texts in (
        ({"guided_choice": ["yes", "no"]}, {"yes", "no"}),
        ({"guided_regex": "[0-3]{2}x"}, {f"{a}{b}x" for a in range(4) for b in range(4)}),
        ({"structured_outputs": {"grammar": 'start: "a" "b"?'}}, {"a", "ab"}),
    ):
        text = client.chat.completions.create(**ASKED, extra_body=guide).choices[0].message.content
        assert text in texts


@pytest.mark.parametrize(
    "wish", [{"structured_outputs": {"json_object": True}}, {"response_format": {"type": "json_object"}}]
)
def test_an_answer_may_be_any_object(server, wish):
    answer = server.chat({"max_tokens": 4, **wish})
    assert answer.status == 200
    assert answer.json["choices"][0]["message"]["content"].lstrip().startswith("{")


def test_a_bad_schema_is_told_as_openai_tells_it(server):
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
    answer = server.chat({"response_format": schema})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (
        400,
        "invalid_json_schema",
        "response_format",
    )


def test_a_grammar_of_the_empty_text_ends_at_once(server):
    answer = server.chat({"guided_regex": ""})
    assert answer.status == 200
    assert answer.json["choices"][0]["message"]["content"] == ""
    assert answer.json["usage"]["completion_tokens"] == 1


def test_a_grammar_that_admits_no_text_is_refused(server):
    answer = server.chat({"guided_json": {"type": "string", "minLength": 2, "maxLength": 1}})
    assert (answer.status, answer.error["param"]) == (400, "guided_json")


def test_tools_need_a_template_that_knows_them(server):
    tool = {"type": "function", "function": {"name": "f"}}
    answer = server.chat({"tools": [tool]})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "unsupported_parameter", "tools")
