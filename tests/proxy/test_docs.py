"""/docs and /openapi.json: true, complete, and without anything from elsewhere."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import jsonschema_rs
import pytest

from tests.proxy.key_file import KeyFile, bearer
from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine


class Tags(HTMLParser):
    """What a page is made of, and where it points to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.targets: list[str] = []
        self.names: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag != "meta":
            self.open.append(tag)
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            if name == "id" and value:
                self.names.add(value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_reference_is_whole_and_loads_nothing(engine: ScriptedEngine, proxy: Proxy) -> None:
    answer = proxy.get("/docs")
    assert answer.header("content-type") == "text/html; charset=utf-8"
    policy = answer.header("content-security-policy") or ""
    assert policy.startswith("default-src 'none'")
    html = answer.read().decode()
    tags = Tags(html)
    assert tags.open == []
    assert "script" not in tags.seen
    for target in tags.targets:
        assert target in ("/openapi.json", "/") or target.removeprefix("#") in tags.names
    for path in proxy.get("/openapi.json").json()["paths"]:
        assert f" {path}</code>" in html
    for field in ("max_tokens", "dropped_messages", "tokens_per_s", "error.message"):
        assert f"<code>{field}</code>" in html
    assert f"http://127.0.0.1:{proxy.port}/chat" in html
    said = re.sub(r"<(style|pre|code)>.*?</\1>", "", html, flags=re.DOTALL)
    assert "{" not in said
    assert "`" not in said


def test_the_host_a_client_names_is_only_text(engine: ScriptedEngine, proxy: Proxy) -> None:
    html = proxy.get("/docs", host="<script>x</script>").read().decode()
    assert "<script" not in html


def test_the_document_says_whether_keys_are_asked_for(
    engine: ScriptedEngine, proxy: Proxy, start_proxy: Callable[..., Proxy], keys: KeyFile
) -> None:
    free = proxy.get("/openapi.json").json()
    assert "securitySchemes" not in free["components"]
    assert "401" not in free["paths"]["/chat"]["post"]["responses"]
    asking = start_proxy(api_keys_file=keys.write("till"), max_tokens=99)
    closed = asking.get("/openapi.json").json()
    for path, methods in closed["paths"].items():
        for operation in methods.values():
            needs = asking.get(path).status == 401 or asking.post(path, b"{}").status == 401
            assert ("security" in operation) == needs, path
            assert ("401" in operation["responses"]) == needs, path
    assert "Authorization: Bearer" in asking.get("/docs").read().decode()
    bound = closed["components"]["schemas"]["ChatRequest"]["properties"]["max_tokens"]
    assert bound["anyOf"][0]["maximum"] == 99
    too_many = asking.post("/chat", {"prompt": "x", "max_tokens": 100}, **bearer("till"))
    assert too_many.status == 400


def schema(document: dict[str, Any], name: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(
        {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    )


def test_answers_are_as_the_document_says(engine: ScriptedEngine, proxy: Proxy) -> None:
    document = proxy.get("/openapi.json").json()
    answer = schema(document, "ChatAnswer")
    answer.validate(proxy.chat(stream=False).json())
    last = proxy.chat().events()[-1]
    assert last.pop("done") is True
    answer.validate({"text": "", **last})
    properties = document["components"]["schemas"]["ChatAnswer"]["properties"]
    assert {"text", *last} == set(properties)
    schema(document, "Error").validate(proxy.post("/chat", b"{").json())
    for path in ("/healthz", "/readyz"):
        schema(document, "Status").validate(proxy.get(path).json())


@pytest.mark.parametrize(
    ("body", "good"),
    [
        ({"prompt": "x"}, True),
        ({"prompt": "x", "messages": None, "seed": None, "stop": ["a"]}, True),
        ({"messages": [{"role": "user", "content": "x"}]}, True),
        ({}, False),
        ({"prompt": None}, False),
        ({"prompt": ""}, False),
        ({"messages": []}, False),
        ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, False),
        ({"prompt": "x", "max_tokens": 5.0, "seed": 7.0}, True),
        ({"prompt": "x", "max_tokens": 5.5}, False),
        ({"prompt": "x", "max_tokens": 513}, False),
        ({"prompt": "x", "max_tokens": 0}, False),
        ({"prompt": "x", "temperature": 2.1}, False),
        ({"prompt": "x", "top_p": 0}, False),
        ({"prompt": "x", "stop": [""]}, False),
        ({"prompt": "x", "n": 2}, False),
        ({"prompt": 1}, False),
    ],
)
def test_the_document_and_the_proxy_agree_on_what_may_be_asked(
    engine: ScriptedEngine, proxy: Proxy, body: dict[str, Any], good: bool
) -> None:
    document = proxy.get("/openapi.json").json()
    assert schema(document, "ChatRequest").is_valid(body) == good
    answer = proxy.post("/chat", body)
    assert answer.status == (200 if good else 400)
    answer.read()
