"""The page's files and the probes, as the proxy serves them. The page in a browser: tests/page."""

import re
from pathlib import Path

import pytest

from edge.artifacts.proxy import _code_files
from tests.proxy.proxy_process import FILES, Proxy
from tests.proxy.scripted_engine import ScriptedEngine

PAGE = FILES / "chat_proxy" / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
SERVED = [path for path in sorted(PAGE.rglob("*")) if path.suffix in TYPES]
OURS = [path for path in SERVED if path.parent == PAGE and path.suffix != ".svg"]


def name(path: Path) -> str:
    return path.relative_to(PAGE).as_posix()


@pytest.mark.parametrize("path", SERVED, ids=name)
def test_a_file_of_the_page(proxy: Proxy, path: Path) -> None:
    answer = proxy.get(f"/page/{name(path)}")
    assert answer.status == 200
    assert answer.read() == path.read_bytes()
    assert answer.header("content-type") == TYPES[path.suffix]
    assert answer.header("x-content-type-options") == "nosniff"
    assert answer.header("cache-control") == "no-cache"
    rules = dict(
        rule.strip().split(" ", 1)
        for rule in (answer.header("content-security-policy") or "").split(";")
    )
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert rules["trusted-types"] == "'none'"
    assert "unsafe" not in str(rules)


def test_the_page_itself(proxy: Proxy) -> None:
    answer = proxy.get("/")
    page = answer.read()
    assert answer.status == 200
    assert page == (PAGE / "index.html").read_bytes()
    assert proxy.get("/", "HEAD").header("content-length") == str(len(page))
    assert proxy.get("/", "HEAD").read() == b""


def test_a_file_that_the_browser_has_is_not_sent_again(proxy: Proxy) -> None:
    etag = proxy.get("/page/chat.js").header("etag")
    assert etag
    again = proxy.get("/page/chat.js", if_none_match=etag)
    assert again.status == 304
    assert again.read() == b""
    assert again.header("etag") == etag
    assert proxy.get("/page/style.css", if_none_match=etag).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/page/",
        "/page/nothing.js",
        "/page/../web.py",
        "/page/%2e%2e/web.py",
        "/page/%2Fetc%2Fpasswd",
        "/page/vendor/README.md",
        "/page/vendor",
        "/page/index.html/",
    ],
)
def test_nothing_else_is_served(proxy: Proxy, path: str) -> None:
    answer = proxy.get(path)
    assert answer.status == 404
    assert answer.json()["error"]["code"] == 404


def test_each_name_in_the_page_is_a_file() -> None:
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    for one in re.findall(r"""(?:src|href)="(?!#)([^"]+)""", page):
        assert PAGE / one.removeprefix("page/") in SERVED
    for script in PAGE.glob("*.js"):
        for one in re.findall(r"""from "\./([^"]+)""", script.read_text(encoding="utf-8")):
            assert PAGE / one in SERVED
            assert script.name == "chat.js" or f'href="page/{one}"' in page, "it would load late"


@pytest.mark.parametrize("path", OURS, ids=name)
def test_our_own_files_need_nothing_from_elsewhere_and_make_no_markup(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"\w+://", text.replace("http://www.w3.org/2000/svg", "")) == []
    for risky in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "DOMParser",
        "document.write",
        "eval(",
        "Function(",
        " style=",
        "console.",
    ):
        assert risky not in text


def test_the_bundle_for_hosts_has_the_whole_page() -> None:
    bundled = set(_code_files(FILES / "chat_proxy"))
    assert set(SERVED) <= bundled
    assert PAGE / "vendor" / "LICENSES.txt" in bundled


def test_probes_and_unknown_paths(engine: ScriptedEngine, proxy: Proxy) -> None:
    assert proxy.get("/healthz").json() == {"status": "ok"}
    assert proxy.get("/readyz").status == 200
    assert [proxy.get(one, "HEAD").status for one in ("/healthz", "/readyz")] == [200, 200]
    engine.stop()
    assert proxy.get("/readyz", "HEAD").status == 503
    assert proxy.get("/healthz").status == 200
    assert proxy.get("/readyz").status == 503
    for path, status in (("/nothing", 404), ("/chat/", 404), ("/chat", 405)):
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
