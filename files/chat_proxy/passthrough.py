"""The engine's OpenAI-compatible endpoints, byte for byte."""

import json
import math
import re
from typing import Any

from .config import MAX_MESSAGES
from .engine import Reply
from .exchange import STREAM_HEADERS, Exchange
from .problem import Problem, bad_request
from .record import Record
from .service import Service

_TAIL = 4096  # bytes at the end of a body that hold the engine's counts
_COUNT = re.compile(rb'"(prompt_tokens|completion_tokens|cache_n|prompt_n|predicted_n)":\s?(\d+)')
# How a stream ends. The text of an answer may hold the same words, but no line end.
_DONE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\][\r\n]*\Z")
_FAILED = re.compile(rb'(?:^|[\r\n])(?:data|error): ?\{"error"[^\r\n]*[\r\n]*\Z')
_MODEL = re.compile(rb'"model":\s?"([^"\\]{1,128})"')


def _number(text: str) -> float:
    """A number as the engine reads it, which has no NaN and nothing beyond a double."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    return value


def wants_stream(body: bytes) -> bool:
    """Whether a request asks for a stream.

    What the engine could not read is refused here, because the engine's journal would quote it.

    So is what would take more than the one slot that this request gets.

    Raises:
        Problem: 400, the body is not a JSON object in UTF-8, or asks for several answers.
    """
    try:
        request = json.loads(
            body.decode(), parse_constant=_number, parse_float=_number, parse_int=_number
        )
        if b"\\u" in body:
            json.dumps(request, ensure_ascii=False).encode()  # half of a surrogate pair
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise bad_request("the body must be a JSON object in UTF-8")
    _one_answer(request)
    return request.get("stream") is True


def _one_answer(request: dict[str, Any]) -> None:
    for name in ("n", "n_cmpl"):  # the engine's own name for it
        if request.get(name) not in (None, 1):
            raise bad_request(f"{name}: this server gives one answer to a request")
    prompt, messages = request.get("prompt"), request.get("messages")
    if (
        isinstance(prompt, list)
        and len(prompt) > 1
        and not any(isinstance(part, (int, float)) for part in prompt)  # else they are one
    ):
        raise bad_request("prompt: this server takes one prompt a request")
    if isinstance(messages, list) and len(messages) > MAX_MESSAGES:
        raise bad_request(f"messages: {MAX_MESSAGES} at most, not {len(messages)}")


async def generate(x: Exchange, service: Service, body: bytes, headers: dict[str, str]) -> None:
    """Hand a completion request to the engine, in its turn, and its answer back.

    There are no heartbeats here: they would fix the status before the engine has spoken.
    """
    streams = wants_stream(body)
    async with service.place(x):
        await forward(x, service, "POST", body, headers, streams=streams)


async def forward(
    x: Exchange,
    service: Service,
    method: str,
    body: bytes,
    headers: dict[str, str],
    *,
    streams: bool,
) -> None:
    """Send one request on, without asking for a place."""
    async with service.engine.ask(
        method,
        x.record.path,
        arrived=x.record.started,
        enter=x.enter,
        # without a stream, the first byte is the whole answer
        phase="prompt" if streams else "answer",
        body=body,
        headers=headers,
    ) as reply:
        x.enter("answer")
        if reply.streams:
            await _stream(x, reply)
            return
        whole = await reply.whole()
        _count(whole[-_TAIL:], x.record)
    await x.client.start(
        reply.status,
        [
            (b"content-type", reply.content_type.encode("latin-1")),
            (b"content-length", str(len(whole)).encode()),
        ],
    )
    await x.client.end(whole)


async def _stream(x: Exchange, reply: Reply) -> None:
    kind = (b"content-type", reply.content_type.encode("latin-1"))
    await x.client.start(reply.status, [kind, *STREAM_HEADERS[1:]])
    tail = b""
    try:
        async for chunk in reply.chunks():
            x.record.saw_text()
            tail = (tail + chunk)[-_TAIL:]
            # OpenAI's own client hangs up when it has read this: then it has not left early.
            x.client.complete = _DONE.search(tail[-32:]) is not None
            await x.client.write(chunk)
    finally:
        x.client.mid_event = not tail.endswith((b"\n\n", b"\r\n\r\n"))
    if not (x.client.complete or _FAILED.search(tail)):
        # An engine that is stopped ends its body properly, without its last event.
        raise Problem(502, "engine_died", "the engine stopped in the middle of the answer")
    _count(tail, x.record)
    await x.client.end()


def _count(tail: bytes, record: Record) -> None:
    """Model and token counts for the log, from usage or from llama-server's timings."""
    found = {name: int(value) for name, value in _COUNT.findall(tail)}
    prompt = found.get(b"prompt_n")
    record.tokens_in = found.get(
        b"prompt_tokens", None if prompt is None else prompt + found.get(b"cache_n", 0)
    )
    record.tokens_out = found.get(b"completion_tokens", found.get(b"predicted_n"))
    if named := _MODEL.findall(tail):
        record.model = named[-1].decode("utf-8", "replace")
    record.finish = "done"
