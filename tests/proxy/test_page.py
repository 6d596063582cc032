"""The page and the probes, as the proxy serves them."""

import base64
import hashlib
import re

from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine


def test_the_page_and_its_policy(proxy: Proxy) -> None:
    answer = proxy.get("/")
    page = answer.read()
    assert answer.status == 200
    assert answer.header("content-type") == "text/html; charset=utf-8"
    assert answer.header("x-content-type-options") == "nosniff"
    rules = dict(
        rule.strip().split(" ", 1)
        for rule in (answer.header("content-security-policy") or "").split(";")
    )
    assert rules["default-src"] == "'none'"
    for tag, rule in ((b"script", "script-src"), (b"style", "style-src")):
        [inline] = re.findall(b"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert "unsafe" not in str(rules)
    assert proxy.get("/", "HEAD").header("content-length") == str(len(page))


def test_the_page_needs_nothing_from_elsewhere_and_makes_no_markup(proxy: Proxy) -> None:
    page = proxy.get("/").read().decode()
    assert "://" not in page
    assert re.findall(r"""(?:src|href)=["'](?!data:,)""", page) == []
    for risky in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        " style=",
    ):
        assert risky not in page


def test_probes_and_unknown_paths(engine: ScriptedEngine, proxy: Proxy) -> None:
    assert proxy.get("/healthz").json() == {"status": "ok"}
    assert proxy.get("/readyz").status == 200
    engine.stop()
    assert proxy.get("/healthz").status == 200
    assert proxy.get("/readyz").status == 503
    for path, status in (("/nothing", 404), ("/chat", 405), ("/docs", 404)):
        answer = proxy.get(path)
        assert answer.status == status
        assert answer.json()["error"]["code"] == status


def test_the_openapi_names_what_chat_takes(proxy: Proxy) -> None:
    schema = proxy.get("/openapi.json").json()
    body = schema["paths"]["/chat"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"] == {"$ref": "#/components/schemas/ChatRequest"}
    fields = schema["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"prompt", "messages", "system", "max_tokens", "temperature", "stop"} < fields.keys()
    assert "Message" in schema["components"]["schemas"]
