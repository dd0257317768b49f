"""Responses, as OpenAI's client and its agents ask for them."""

from __future__ import annotations

import pytest

NAME = "smollm2-135m"


def test_an_input_is_a_user_message_and_instructions_a_system_message(server, client):
    engine = server.engine
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hi"}]
    wanted = engine.generate(engine.render(messages), max_tokens=8).text
    asked = {"model": NAME, "instructions": "Be brief.", "max_output_tokens": 8, "temperature": 0}
    parts = [
        {"role": "user", "content": [{"type": "input_text", "text": "Say "}, {"type": "input_text", "text": "hi"}]}
    ]
    for given in ("Say hi", [{"role": "user", "content": "Say hi"}], parts):
        answer = client.responses.create(**asked, input=given)
        assert answer.output_text == wanted
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.store, answer.previous_response_id, answer.usage.output_tokens) == (False, None, 8)
    assert answer.output[0].status == "incomplete"


def test_the_events_of_a_stream(client):
    asked = {"model": NAME, "input": "Say hi", "max_output_tokens": 6, "temperature": 0}
    whole = client.responses.create(**asked).output_text
    events = list(client.responses.create(**asked, stream=True))
    kinds = [e.type.removeprefix("response.") for e in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert [e.sequence_number for e in events] == [*range(len(events))]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole
    assert events[-1].response.output_text == whole
    assert events[-1].response.usage.output_tokens == 6
    assert events[2].item.content == []


def test_a_whole_answer_is_completed_and_may_follow_a_schema(client):
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    wanted = {"format": {"type": "json_schema", "name": "yes", "schema": schema, "strict": True}}
    asked = {"model": NAME, "input": "Say yes", "max_output_tokens": 40, "temperature": 0, "text": wanted}
    with client.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert answer.status == "completed"
    assert '"ok"' in answer.output_text


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"), ({"store": True}, "store"),
        ({"background": True}, "background"), ({"conversation": "c"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["message.output_text.logprobs"]}, "include"), ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"prompt": {"id": "p"}}, "prompt"), ({"max_output_tokens": 0}, "max_output_tokens"), ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"), ({"input": None}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"), ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"input": "word " * 100_000}, "input"),
        ({"metadata": {"a": 1}}, "metadata"), ({"temperature": 1e9 - 1e10}, "temperature"),
    ],
)  # fmt: skip
def test_what_is_not_stored_cannot_be_asked_for(server, given, param):
    answer = server.ask("POST", "/v1/responses", {"input": "x", "max_output_tokens": 2, **given})
    assert (answer.status, answer.error["param"]) == (400, param)


def test_the_usual_verbosity_asks_for_nothing(server):
    wanted = {"verbosity": "medium", "format": {"type": "text"}}
    answer = server.ask("POST", "/v1/responses", {"input": "x", "max_output_tokens": 2, "text": wanted})
    assert (answer.status, answer.json["text"]) == (200, wanted)
