"""The OpenAPI document: what FastAPI cannot see of routes that read and stream by themselves."""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .config import Settings
from .request import ChatRequest

Json = dict[str, Any]

_REF = "#/components/schemas/{model}"
_STREAM = "text/event-stream"


class Usage(BaseModel):
    """Tokens, as the engine counts them."""

    prompt_tokens: int | None
    completion_tokens: int | None
    total_tokens: int


class Timings(BaseModel):
    """Seconds since the request arrived."""

    queue_s: float | None = Field(description="until it had a slot")
    first_token_s: float | None = Field(description="until the first piece of the answer")
    total_s: float
    tokens_per_s: float | None = Field(description="after the first token; null for one token")


class ChatAnswer(BaseModel):
    """The answer of /chat with stream=false; a stream's last event has `done` instead of `text`."""

    text: str
    finish_reason: str | None = Field(
        description="stop: the model ended; length: max_tokens, or the end of the context"
    )
    model: str | None
    usage: Usage
    timings: Timings
    dropped_messages: int = Field(
        description="oldest messages that were left out to fit into the context", ge=0
    )


class ErrorDetail(BaseModel):
    """What went wrong."""

    code: int = Field(description="the HTTP status")
    type: str = Field(description="a word for programs")
    message: str
    retry_after: int | None = Field(None, description="seconds, as the header Retry-After")


class Error(BaseModel):
    """The body of every error, and the data of a stream's `event: error`."""

    error: ErrorDetail


class Status(BaseModel):
    """A probe's answer."""

    model_config = ConfigDict(extra="forbid")

    status: Literal["ok", "ready", "not ready"]
    reason: str | None = Field(None, description="why the engine cannot generate")


def document(plain: Json, settings: Settings) -> Json:
    """FastAPI's document with bodies, answers and errors filled in."""
    schemas = plain.setdefault("components", {}).setdefault("schemas", {})
    for model in (ChatRequest, ChatAnswer, Error, Status):
        described = model.model_json_schema(ref_template=_REF)
        schemas.update(described.pop("$defs", {}))
        schemas[model.__name__] = described
    _bound_request(schemas["ChatRequest"], settings)
    keys = bool(settings.api_keys_file)
    for path, methods in plain["paths"].items():
        for operation in methods.values():
            closed = path not in ("/healthz", "/readyz")
            operation["responses"] = _RESPONSES[path](keys and closed)
            if keys and closed:
                operation["security"] = [{"key": []}]
    if keys:
        plain["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return plain


def json_body(schema: str | None) -> Json:
    """A route's JSON body, which it reads itself to keep it bounded; None: any object."""
    described = {"$ref": _REF.format(model=schema)} if schema else {"type": "object"}
    return {"requestBody": {"required": True, "content": _json(described)}}


def _bound_request(schema: Json, settings: Settings) -> None:
    whole = schema["properties"]["max_tokens"]["anyOf"][0]
    whole["maximum"] = settings.max_tokens
    schema["oneOf"] = [
        {
            "required": [one],
            "properties": {one: {"type": kind}, other: {"type": "null"}},
        }
        for one, kind, other in (("prompt", "string", "messages"), ("messages", "array", "prompt"))
    ]


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _answer(what: str, content: Json) -> Json:
    return {"description": what, "content": content}


def _errors(keys: bool, *statuses: int) -> Json:
    wanted = [*statuses, *([401] if keys else [])]
    found: Json = {}
    for status in sorted(wanted):
        one = _answer(_MEANINGS[status], _json({"$ref": _REF.format(model="Error")}))
        headers = ["Retry-After"] * (status in (429, 503)) + ["WWW-Authenticate"] * (status == 401)
        if headers:
            one["headers"] = {name: {"schema": {"type": "string"}} for name in headers}
        found[str(status)] = one
    return found


_MEANINGS = {
    400: "The request cannot be used; the message says why.",
    401: "No key was sent, or none that is in force.",
    403: "A page of another site asked.",
    404: "The engine does not have this.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    429: "Everything is taken, or the key has used up its rate: come back after Retry-After.",
    500: "The engine or the proxy failed.",
    501: "The engine was started without this.",
    502: "The engine failed or stopped.",
    503: "The engine is away, or there is no room: come back after Retry-After.",
    504: "The engine took too long.",
}


def _chat(keys: bool) -> Json:
    ref = {"$ref": _REF.format(model="ChatAnswer")}
    ok = _answer(
        'Events: `data: {"text": …}` for each piece, then `data: {"done": true, …}` with the '
        "fields of ChatAnswer but for text; `event: error` if it breaks off. Comments "
        "(`: queue 3`, `: engine`, `: prompt`) tell what a waiting request waits for.",
        {_STREAM: {"schema": {"type": "string"}}, **_json(ref)},
    )
    return {"200": ok, **_errors(keys, 400, 403, 408, 413, 429, 500, 502, 503, 504)}


def _completion(keys: bool) -> Json:
    ok = _answer(
        "As OpenAI's API: one object, or events with stream=true.",
        {_STREAM: {"schema": {"type": "string"}}, **_json({"type": "object"})},
    )
    return {"200": ok, **_errors(keys, 400, 403, 408, 413, 429, 500, 501, 502, 503, 504)}


def _models(keys: bool) -> Json:
    ok = _answer("As OpenAI's API.", _json({"type": "object"}))
    return {"200": ok, **_errors(keys, 403, 408, 413, 429, 500, 502, 503, 504)}


def _status(what: str) -> Json:
    return _answer(what, _json({"$ref": _REF.format(model="Status")}))


_RESPONSES: dict[str, Callable[[bool], Json]] = {
    "/chat": _chat,
    "/v1/chat/completions": _completion,
    "/v1/completions": _completion,
    "/v1/models": _models,
    "/healthz": lambda _: {"200": _status("It runs.")},
    "/readyz": lambda _: {"200": _status("It can."), "503": _status("It cannot; why.")},
    "/metrics": lambda keys: {
        "200": _answer("Prometheus' text format.", {"text/plain": {"schema": {"type": "string"}}}),
        **_errors(keys, 403),
    },
}
