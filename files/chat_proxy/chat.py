"""POST /chat: a small request in, text as it is generated out."""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from .config import Settings
from .engine import Reply
from .exchange import STREAM_HEADERS, Exchange
from .history import Turn, fit
from .problem import Problem, bad_request
from .record import Record
from .request import Ask
from .service import Service
from .sse import Parser, TooLong

ENGINE_PATH = "/v1/chat/completions"

# made once: json.dumps and json.loads would make or find out more for each token
_encode = json.JSONEncoder(ensure_ascii=False).encode
_decode = json.JSONDecoder().decode


async def answer(x: Exchange, service: Service, ask: Ask) -> None:
    """Generate, and send the answer as it comes, or in one."""
    x.heartbeat = ask.streams
    settings, record = x.settings, x.record
    parts: list[str] = []  # of an answer that goes out in one
    async with service.place(x):
        count = partial(_count, x, service)
        ask.body, dropped = await fit(ask.body, ask.prompt_tokens, count)
        async with _asked(x, service, ENGINE_PATH, ask.body) as reply:
            if not (reply.status == 200 and reply.streams):
                raise await _refused(reply, settings)
            begun = False
            async for text in _texts(reply, record):
                if not begun:
                    begun = True
                    x.enter("answer")
                    if ask.streams:
                        await x.client.start(200, STREAM_HEADERS)
                if ask.streams:
                    await x.client.write(_event({"text": text}))
                else:
                    parts.append(text)
    # The place is free before the last bytes go to a client that may read slowly.
    x.enter("answer")
    last = {
        "finish_reason": record.finish,
        "model": record.model,
        "usage": {
            "prompt_tokens": record.tokens_in,
            "completion_tokens": record.tokens_out,
            "total_tokens": (record.tokens_in or 0) + (record.tokens_out or 0),
        },
        "timings": record.timings(),
        "dropped_messages": dropped,
    }
    if ask.streams:
        await x.client.start(200, STREAM_HEADERS)
        await x.client.end(_event({"done": True, **last}))
        return
    whole = _json({"text": "".join(parts), **last})
    length = str(len(whole)).encode()
    await x.client.start(
        200,
        [(b"content-type", b"application/json; charset=utf-8"), (b"content-length", length)],
    )
    await x.client.end(whole)


def _asked(
    x: Exchange, service: Service, path: str, body: bytes
) -> AbstractAsyncContextManager[Reply]:
    return service.engine.ask("POST", path, arrived=x.record.started, enter=x.enter, body=body)


async def _count(x: Exchange, service: Service, messages: list[Turn]) -> int | None:
    """Tokens of a prompt, as the engine's own template and vocabulary make them."""
    rendered = await _told(x, service, "/apply-template", {"messages": messages})
    if rendered is None:
        return None
    prompt = {"content": rendered.get("prompt"), "add_special": True, "parse_special": True}
    made = await _told(x, service, "/tokenize", prompt)
    tokens = None if made is None else made.get("tokens")
    return len(tokens) if isinstance(tokens, list) else None


async def _told(
    x: Exchange, service: Service, path: str, question: dict[str, Any]
) -> dict[str, Any] | None:
    """The engine's answer to a small question; None when it has none."""
    async with _asked(x, service, path, _json(question)) as reply:
        raw = await reply.whole()
        if reply.status != 200:
            return None
    try:
        answer = json.loads(raw)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


async def _texts(reply: Reply, record: Record) -> AsyncIterator[str]:
    """The pieces of the answer; the counts go into `record`.

    Raises:
        Problem: 502, the stream is not what the engine sends, or ends before its end.
    """
    parser = Parser()
    async for chunk in reply.chunks():
        try:
            events = parser.feed(chunk)
        except TooLong as err:
            raise Problem(502, "engine_error", f"the engine sent {err}") from err
        for event in events:
            if event.data == b"[DONE]":
                if record.finish is None:
                    break
                return
            text = _read(event.data, record)
            if text:
                record.saw_text()
                yield text
    raise Problem(502, "engine_died", "the engine stopped in the middle of the answer")


def _read(data: bytes, record: Record) -> str | None:
    """The text in one chunk of a completion."""
    try:
        chunk = _decode(data.decode())
        if "error" in chunk:
            raise Problem(502, "engine_error", f"the engine failed: {_message(chunk)}")
        if usage := chunk.get("usage"):
            record.tokens_in = usage["prompt_tokens"]
            record.tokens_out = usage["completion_tokens"]
        record.model = chunk.get("model") or record.model
        if not chunk["choices"]:
            return None
        choice = chunk["choices"][0]
        record.finish = choice.get("finish_reason") or record.finish
        text = choice["delta"].get("content")
        return text if isinstance(text, str) else None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as err:
        raise Problem(502, "engine_error", "the engine sent an event that is no chunk") from err


async def _refused(reply: Reply, settings: Settings) -> Problem:
    """The engine's refusal, as the client should read it."""
    raw = await reply.whole()
    try:
        error = json.loads(raw)["error"]
        message = _message({"error": error})
    except (ValueError, KeyError, TypeError):
        error, message = None, f"status {reply.status}"
    if isinstance(error, dict) and error.get("type") == "exceed_context_size_error":
        return Problem(
            400,
            "context_length_exceeded",
            f"the conversation has {error.get('n_prompt_tokens', 'too many')} tokens and a slot "
            f"holds {settings.context_per_slot}: send less",
        )
    if 400 <= reply.status < 500 and reply.status not in (401, 403, 404):
        return bad_request(message)
    # 401: the proxy's own key is wrong, which is no fault of the client
    return Problem(502, "engine_error", f"the engine refused: {message}")


def _message(chunk: dict[str, Any]) -> str:
    error = chunk["error"]
    text = error.get("message", "no reason given") if isinstance(error, dict) else str(error)
    return " ".join(str(text).split())[:500]


def _json(value: dict[str, Any]) -> bytes:
    return _encode(value).encode("utf-8", "replace")


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + _json(value) + b"\n\n"
