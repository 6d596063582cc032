"""The engine's OpenAI-compatible endpoints, byte for byte."""

import json
import math
import re

from . import completion
from .engine import Reply
from .exchange import STREAM_HEADERS, Exchange
from .problem import Problem, bad_request
from .record import Record
from .service import Service

_FIELDS = {
    "/v1/chat/completions": completion.CHAT,
    "/v1/completions": completion.COMPLETIONS,
}
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


def _whole(text: str) -> int:
    _number(text)
    return int(text)


def wants_stream(body: bytes, fields: dict[str, completion.Check]) -> bool:
    """Whether a request asks for a stream.

    What the engine could not read is refused here, because the engine's journal would quote it.
    So is what it should not see, as `completion.check` says.

    Raises:
        Problem: 400, the body is not a JSON object in UTF-8, or a field of it cannot be taken.
    """
    try:
        request = json.loads(
            body.decode(), parse_constant=_number, parse_float=_number, parse_int=_whole
        )
        if b"\\u" in body:
            json.dumps(request, ensure_ascii=False).encode()  # half of a surrogate pair
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise bad_request("the body must be a JSON object in UTF-8")
    completion.check(request, fields)
    return request.get("stream") is True


async def generate(x: Exchange, service: Service, body: bytes) -> None:
    """Hand a completion request to the engine, in its turn, and its answer back.

    There are no heartbeats here: they would fix the status before the engine has spoken.
    """
    streams = wants_stream(body, _FIELDS[x.record.path])
    async with service.place(x):
        await forward(x, service, "POST", body, streams=streams)


async def forward(
    x: Exchange, service: Service, method: str, body: bytes, *, streams: bool
) -> None:
    """Send one request on, without asking for a place.

    Not one of the client's headers goes along: the engine would take some for its business.
    """
    async with service.engine.ask(
        method,
        x.record.path,
        arrived=x.record.started,
        enter=x.enter,
        # without a stream, the first byte is the whole answer
        phase="prompt" if streams else "answer",
        body=body,
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
