"""What /v1 lets through: all of the openai client's ordinary use, and nothing dangerous."""

import json
import typing
from collections.abc import Callable
from typing import Any

import pytest
from chat_proxy.answer_schema import MAX_BYTES, MAX_VALUES
from chat_proxy.completion import CHAT, COMPLETIONS, check
from chat_proxy.problem import Problem
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import BadRequestError, OpenAI
from openai.types import completion_create_params as of_completions
from openai.types.chat import completion_create_params as of_chat

from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, last_events, text_event

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "its name", "minLength": 1, "maxLength": 80},
        "unit": {"enum": ["C", "F"]},
        "pattern": {"$ref": "#/$defs/Pattern"},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"Pattern": {"type": ["string", "null"]}},
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
HELLO = {"role": "user", "content": "Hello"}


def refused(request: dict[str, Any], fields: Any = CHAT) -> str:
    with pytest.raises(Problem) as caught:
        check(request, fields)
    assert (caught.value.status, caught.value.kind) == (400, "invalid_request_error")
    return caught.value.message


def in_schema(schema: Any) -> list[dict[str, Any]]:
    """Each place where a request can have a schema."""
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    return [
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        {"response_format": {"type": "json_object", "schema": schema}},
        {"json_schema": schema},
        {"tools": [TOOL, tool]},
    ]


def nested(depth: int) -> Any:
    inner: Any = []
    for _ in range(depth - 1):
        inner = [inner]
    return inner


def test_every_parameter_of_openai_has_an_entry() -> None:
    for module, fields in ((of_chat, CHAT), (of_completions, COMPLETIONS)):
        for kind in typing.get_args(module.CompletionCreateParams):
            assert set(kind.__annotations__) <= set(fields)


EXAMPLES: list[dict[str, Any]] = [
    {},
    {"temperature": 0, "top_p": 0.5, "seed": -1, "max_tokens": 8, "stop": ["a", "b"], "user": "u"},
    {"max_completion_tokens": 8, "stop": "\n", "n": 1, "store": False, "metadata": {"a": "b"}},
    {"logprobs": True, "top_logprobs": 20, "logit_bias": {"12": -100, "13": 1}},
    {"frequency_penalty": -2, "presence_penalty": 2.0, "service_tier": "auto"},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "text"}, "reasoning_effort": "low", "verbosity": "low"},
    {"response_format": FORMAT},
    {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
    {"extra_body": {"top_k": 40, "min_p": 0.1, "repeat_penalty": 1.1, "cache_prompt": True}},
    {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}, "json_schema": CITY}},
    {
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
            HELLO,
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": "1",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        ]
    },
]


@pytest.mark.parametrize("more", EXAMPLES)
def test_the_openai_client_chats(engine: ScriptedEngine, proxy: Proxy, more: Any) -> None:
    client = OpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="k", max_retries=0)

    def script(turn: Turn) -> None:
        if turn.json.get("stream"):
            turn.say("Hello", " there")
        else:
            turn.plain(200, b'{"choices": [{"message": {"content": "Hello there"}}]}')

    engine.script = script
    asked = {"model": "any", "messages": [HELLO], **more}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.content == "Hello there"
    stream = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    parts = [one.choices[0].delta.content for one in stream if one.choices]
    assert "".join(filter(None, parts)) == "Hello there"
    sent = {**{k: v for k, v in asked.items() if k != "extra_body"}, **more.get("extra_body", {})}
    assert engine.turn(0).json == sent
    proxy.sent += 2


@pytest.mark.parametrize(
    "more",
    [
        {"prompt": "One,", "max_tokens": 3, "logprobs": 5, "echo": False, "stop": ["a"]},
        {"prompt": [12, 13], "logit_bias": {"12": 1}, "user": "u", "seed": 7, "n": 1},
    ],
)
def test_the_openai_client_completes(engine: ScriptedEngine, proxy: Proxy, more: Any) -> None:
    client = OpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="k", max_retries=0)
    engine.script = lambda turn: turn.plain(200, b'{"choices": [{"text": "two"}]}')
    assert client.completions.create(model="any", **more).choices[0].text == "two"
    engine.script = lambda turn: turn.stream(text_event("a"), last_events())
    assert list(client.completions.create(model="any", stream=True, **more))
    proxy.sent += 2


def test_the_client_reads_why(engine: ScriptedEngine, proxy: Proxy) -> None:
    client = OpenAI(base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="k", max_retries=0)
    with pytest.raises(BadRequestError, match="id_slot: this server does not take"):
        client.chat.completions.create(model="m", messages=[], extra_body={"id_slot": 0})
    assert engine.turns == []
    proxy.sent += 1


@pytest.mark.parametrize(
    "more",
    [
        {"grammar": "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000},
        {"dry_sequence_breakers": ["a"]},
        {"id_slot": 0},
        {"samplers": "k" * 10_000},
        {"lora": []},
        {"grammar_lazy": True},
        {"chat_parser": ""},
        {"preserved_tokens": []},
        {"sse_ping_interval": 0},
        {"Temperature": 1},
        {"": 1},
    ],
)
def test_other_fields_are_refused(more: dict[str, Any]) -> None:
    (name,) = more
    for fields in (CHAT, COMPLETIONS):
        message = refused(more, fields)
        assert message.startswith(f"{name or repr(name)}: this server does not take this field")
        assert len(message) < 150


def test_each_endpoint_has_its_own() -> None:
    assert "/v1/completions" in refused({"prompt": "x"})
    assert "/v1/chat/completions" in refused({"messages": []}, COMPLETIONS)
    assert refused({"\n" * 1000: 1}).isprintable()


EDGES: list[tuple[str, list[Any], list[Any]]] = [
    ("logprobs", [True, False, 0, 20, 20.0], [21, 50_000, -1, 1.5, "1", [1]]),
    ("n_probs", [0, 20], [21, True, -1]),
    ("top_logprobs", [0, 20], [21, True]),
    ("stop", ["", "a" * 256, ["a" * 256] * 16], ["a" * 257, ["a"] * 17, [1], {"a": 1}, 5]),
    (
        "logit_bias",
        [{}, {str(n): -100 for n in range(300)}, {"x" * 64: False}],
        [{str(n): 1 for n in range(301)}, {"x" * 65: 1}, {"1": True}, {"1": "1"}, [[1, 2]]],
    ),
    ("tools", [[], [TOOL] * 32], [[TOOL] * 33, {}, [{}], [1], [{**TOOL, "type": "custom"}]]),
    ("n", [1, 1.0], [0, 2, -1, "1", [1]]),
    ("n_cmpl", [1], [2]),
    ("repeat_last_n", [-1, 0, 4096], [4097, 2_000_000_000, 0.5]),
    ("dry_penalty_last_n", [-1, 4096], [4097, 2_000_000_000]),
    ("temperature", [0, 0.7, 2**31 - 1], [2**31, -(2**31), True, "1", 1e308]),
    ("max_tokens", [-1, 1e2], [1.5, 2**31, "8"]),
    ("stream", [True, False], [1, "true", []]),
    ("model", ["any"], [1, ["any"]]),
    (
        "chat_template_kwargs",
        [{}, {f"a{n}": "x" * 256 for n in range(16)}, {"enable_thinking": False, "k": 1.5}],
        [{str(n): 1 for n in range(17)}, {"a": "x" * 257}, {"a" * 257: 1}, {"a": []}, {"a": {}}, 1],
    ),
    (
        "messages",
        [[], [HELLO] * 256, [{"role": "assistant", "content": None}]],
        [[HELLO] * 257, {}, ["Hello"], [{"content": 5}], [{"content": {}}], [{"content": ["a"]}]],
    ),
    ("metadata", [nested(32), {"a": [{"b": 1}]}], [nested(33), nested(900)]),
    ("response_format", [{}, {"type": "text", "json_schema": None}], ["json", {"json_schema": 1}]),
    ("json_schema", [{}], ["x", True, []]),
]


@pytest.mark.parametrize(("field", "good", "bad"), EDGES, ids=[one[0] for one in EDGES])
def test_each_bound_at_its_edge(field: str, good: list[Any], bad: list[Any]) -> None:
    for value in [None, *good]:
        check({field: value}, CHAT)
    for value in bad:
        assert refused({"stream": True, field: value}).startswith(f"{field}: "), value


def test_completions_take_one_answer_and_one_prompt() -> None:
    for good in ({"best_of": 1}, {"prompt": ["a"]}, {"prompt": [12, "a", 7]}, {"prompt": [[1, 2]]}):
        check(good, COMPLETIONS)
    for bad in ({"best_of": 2}, {"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}, {"prompt": {}}):
        refused(bad, COMPLETIONS)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "input_text"])
def test_only_text_is_read(kind: str) -> None:
    part = {"type": kind, kind: {"url": "file:///etc/passwd"}}
    message = refused({"messages": [HELLO, {"role": "user", "content": [part]}]})
    assert message.startswith("messages: 1: this model reads text only")


@pytest.mark.parametrize("depth", [33, 900, 40_000])
def test_arguments_of_a_call_are_as_flat_as_the_rest(depth: int) -> None:
    def asks(deep: int) -> dict[str, Any]:
        arguments = "[" * deep + "]" * deep
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        return {"messages": [{"role": "assistant", "tool_calls": [call]}]}

    check(asks(32), CHAT)
    assert refused(asks(depth)) == "messages: 0: nested more than 32 deep"


def bad_name(name: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": name}}]}


def test_names_of_tools() -> None:
    check(bad_name("a-Z_9" + "a" * 59), CHAT)
    for name in ("", "a" * 65, "a b", "a\n", "(((", None, 5):
        assert "the name must be" in refused(bad_name(name))


def doubling(depth: int) -> dict[str, Any]:
    defs: dict[str, Any] = {
        f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(depth)
    }
    return {"$defs": {**defs, f"a{depth}": {"type": "string"}}, "$ref": "#/$defs/a0"}


def types(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": ["object", "string"], "allOf": [schema]}
    return schema


BAD_SCHEMAS: dict[str, Any] = {
    "pattern": {"type": "string", "pattern": "^((a{0,200}){0,200})$"},
    "pattern in a property": {"properties": {"pattern": {"pattern": "^a$"}}},
    "pattern behind a $ref": {"$ref": "#/x/0", "x": [{"pattern": "^a$"}]},
    "minLength": {"minLength": 1001},
    "maxItems": {"items": {"maxItems": 10**300}},
    "below nothing": {"minItems": -1},
    "long name": {"properties": {"a" * 129: {}}},
    "many": {"enum": list(range(MAX_VALUES))},
    "types": types(9),
    "doubling": doubling(8),
    "loop": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "loop below allOf": {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}},
    "itself": {"properties": {"next": {"$ref": "#/properties"}}},
    "elsewhere": {"$ref": "https://example.com/a.json"},
    "nowhere": {"$ref": "#/$defs/a"},
    "leading zero": {"$ref": "#/anyOf/00", "anyOf": [{}]},
    "into a text": {"$ref": "#/title/0", "title": "x"},
    "large": {"description": "x" * MAX_BYTES},
    "no object": ["x"],
}
GOOD_SCHEMAS: dict[str, Any] = {
    "city": CITY,
    "counts": {"minLength": 0, "maxLength": 1000, "minItems": 1000, "maxItems": 1000},
    "properties named like keywords": {"properties": {"pattern": {}, "maxItems": {}, "$ref": {}}},
    "long name": {"properties": {"a" * 128: {}}},
    "many": {"enum": list(range(MAX_VALUES - 2))},
    "types": types(5),
    "doubling": doubling(4),
    "shared": {"$defs": {"a": {"type": "string"}}, "items": {"$ref": "#/$defs/a"}},
    "large": {"description": "x" * (MAX_BYTES - len('{"description":""}'))},
}


@pytest.mark.parametrize("name", BAD_SCHEMAS)
def test_schemas_that_cost_too_much(name: str) -> None:
    for request in in_schema(BAD_SCHEMAS[name]):
        (field,) = request
        assert refused(request).startswith(f"{field}: ")


@pytest.mark.parametrize("name", GOOD_SCHEMAS)
def test_schemas_that_pass(name: str) -> None:
    for request in in_schema(GOOD_SCHEMAS[name]):
        check(request, CHAT)


def test_the_engine_gets_none_of_the_clients_headers(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy()
    engine.script = lambda turn: turn.plain(200, b"{}")
    odd = {"content_type": "multipart/form-data", "accept": ";;;q=99", "authorization": "k"}
    assert proxy.post("/v1/completions", {"prompt": "x"}, **odd).status == 200
    assert proxy.get("/v1/models", accept=";;;q=99").status == 200
    asked, listed = engine.turn(0).headers, engine.turn(1).headers
    assert asked["content-type"] == "application/json"
    for name in ("accept", "authorization"):
        assert name not in asked
        assert name not in listed


words = ["type", "function", "name", "parameters", "schema", "json_schema", "$ref", "#/type"]
words += ["pattern", "content", "text", "tool_calls", "arguments", "enum", "minLength", "[[", "{"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(words),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(words) | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=25,
)


@settings(derandomize=True, deadline=None, database=None, max_examples=1500)
@given(
    request=st.dictionaries(st.sampled_from([*CHAT, "prompt"]), json_values, max_size=3),
    fields=st.sampled_from([CHAT, COMPLETIONS]),
)
def test_any_json_passes_or_is_a_problem(request: dict[str, Any], fields: Any) -> None:
    problem = None
    try:
        check(request, fields)
    except Problem as caught:
        problem = caught
    if problem is not None:
        assert problem.status == 400
        assert json.loads(problem.body())["error"]["message"].isprintable()
