"""GET /docs: the OpenAPI document for people, without scripts or anybody else's server."""

import base64
import hashlib
import re
from collections.abc import Iterator
from html import escape
from typing import Any

Json = dict[str, Any]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 52rem; margin: auto; padding: 1rem; }
h2 { margin: 2.5rem 0 .5rem; font-size: 1.2rem; }
h2 code { font-size: inherit; }
code, pre { font: 14px/1.5 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8886; border-radius: .4rem; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; }
tr { border-bottom: 1px solid #8884; }
"""
_EXAMPLE = """curl -N {base}/chat -d '{{"prompt": "What is the capital of France?"}}'"""


def headers() -> dict[str, str]:
    """Nothing but the page's own style is allowed on it."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    return {
        "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }


def page(document: Json, base_url: str) -> str:
    """HTML of an OpenAPI document; `base_url` is how this client reaches the server."""
    example = _EXAMPLE.format(base=base_url)
    if "securitySchemes" in document["components"]:
        example += " \\\n  -H 'Authorization: Bearer KEY'"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(document['info']['title'])}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(document['info']['title'])}</h1>",
        '<p>For programs: <a href="/openapi.json">openapi.json</a>. '
        'To chat: <a href="/">the page</a>.</p>',
        f"<pre>{escape(example)}</pre>",
    ]
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts += _operation(f"{method.upper()} {path}", operation, schemas)
    for name in ("ChatRequest", "Message", "ChatAnswer", "Usage", "Timings", "Error"):
        parts += _schema(name, schemas)
    return "".join([*parts, "</body></html>"])


def _operation(title: str, operation: Json, schemas: Json) -> Iterator[str]:
    yield f"<h2><code>{escape(title)}</code></h2><p>{_words(operation['description'])}</p>"
    if sent := operation.get("requestBody"):
        yield f"<p>Body: {_kinds(sent['content'])}</p>"
    rows = (
        (f"<code>{status}</code>", _words(one["description"]), _kinds(one["content"]))
        for status, one in operation["responses"].items()
    )
    yield _table(("status", "meaning", "body"), rows)


def _schema(name: str, schemas: Json) -> Iterator[str]:
    found = schemas[name]
    if name == "Error":
        found = {**schemas["ErrorDetail"], "description": found["description"]}
    yield f'<h2 id="{name}">{name}</h2><p>{_words(found["description"])}</p>'
    needed = found.get("required", [])
    rows = (
        (
            f"<code>{'error.' if name == 'Error' else ''}{escape(field)}</code>",
            _type(one) + ("" if field in needed else ", optional"),
            _words(one.get("description", "")),
        )
        for field, one in found["properties"].items()
    )
    yield _table(("field", "type", "meaning"), rows)


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    titles = "".join(f'<th scope="col">{one}</th>' for one in head)
    return f'<div class="table"><table><tr>{titles}</tr>{lines}</table></div>'


def _words(text: str) -> str:
    """Text with `code` in it, as HTML."""
    return re.sub(r"`(.*?)`", r"<code>\1</code>", escape(text))


def _kinds(content: Json) -> str:
    return ", ".join(
        f"{escape(kind)} {_type(one['schema']) if '$ref' in one['schema'] else ''}".strip()
        for kind, one in content.items()
    )


def _type(schema: Json) -> str:
    """A field's type and bounds in words, as HTML."""
    if ref := schema.get("$ref"):
        name = ref.rsplit("/", 1)[1]
        return f'<a href="#{name}">{name}</a>' if name != "Status" else "object"
    if kinds := schema.get("anyOf"):
        return " or ".join(_type(one) for one in kinds if one.get("type") != "null")
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(one))}</code>" for one in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}{_bounds(schema)}"
    return f"{escape(schema['type'])}{_bounds(schema)}"


def _bounds(schema: Json) -> str:
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
        "minLength": "characters: at least",
        "maxLength": "characters: at most",
        "minItems": "items: at least",
        "maxItems": "items: at most",
    }
    found = [f"{word} {schema[name]}" for name, word in words.items() if name in schema]
    return f" ({', '.join(found)})" if found else ""
