"""POST /chat: a small request in, text as it is generated out."""

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .config import MAX_MESSAGES, Settings
from .engine import Reply
from .exchange import STREAM_HEADERS, Exchange
from .problem import Problem, bad_request
from .record import Record
from .service import Service
from .sse import Parser, TooLong

ENGINE_PATH = "/v1/chat/completions"


Stop = Annotated[str, Field(min_length=1, max_length=256)]


class Message(BaseModel):
    """One turn."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "user", "assistant"]
    content: str


class ChatRequest(BaseModel):
    """Either `prompt` or `messages`; what is left out has the server's default."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: str | None = Field(None, min_length=1)
    messages: list[Message] | None = Field(None, min_length=1, max_length=MAX_MESSAGES)
    system: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=0, lt=2**32)
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    stream: bool = True

    @model_validator(mode="after")
    def _one_conversation(self) -> "ChatRequest":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        if self.messages:
            if self.messages[-1].role != "user":
                raise ValueError("the last of messages must have the role user")
            later = self.messages if self.system is not None else self.messages[1:]
            if any(one.role == "system" for one in later):
                raise ValueError("one system message at most, at the beginning or as system")
        return self

    def for_engine(self, settings: Settings) -> bytes:
        """The body of the engine's own request.

        Raises:
            Problem: 400, more tokens are asked for than this server gives.
        """
        if (self.max_tokens or 0) > settings.max_tokens:
            raise bad_request(
                f"max_tokens: {self.max_tokens} is above {settings.max_tokens}, "
                "the most that this server gives"
            )
        turns = [one.model_dump() for one in self.messages or ()]
        if self.prompt is not None:
            turns = [{"role": "user", "content": self.prompt}]
        system = self.system if self.system is not None else settings.system_prompt
        if system and turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": system})
        request: dict[str, Any] = {
            "messages": turns,
            "max_tokens": self.max_tokens or settings.max_tokens,
            "temperature": (settings.temperature if self.temperature is None else self.temperature),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for name in ("top_p", "seed", "stop"):
            if (value := getattr(self, name)) is not None:
                request[name] = value
        return json.dumps(request, ensure_ascii=False).encode()


def parse(raw: bytes) -> ChatRequest:
    """Read a request's body.

    Raises:
        Problem: 400, with the first thing that is wrong in one line.
    """
    try:
        return ChatRequest.model_validate_json(raw)
    except ValidationError as err:
        first = err.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        what = first["msg"].removeprefix("Value error, ")
        raise bad_request(f"{where}: {what}" if where else what) from None


def prepare(raw: bytes, settings: Settings) -> tuple[bytes, bool]:
    """What the engine gets for a request's body, and whether the client wants a stream.

    Only this stays in memory while the request waits.

    Raises:
        Problem: 400, with the first thing that is wrong in one line.
    """
    request = parse(raw)
    return request.for_engine(settings), request.stream


async def answer(x: Exchange, service: Service, body: bytes, *, streams: bool) -> None:
    """Generate; `body` is what the engine gets."""
    x.heartbeat = streams
    settings, record = x.settings, x.record
    parts: list[str] = []  # of an answer that goes out in one
    async with (
        service.place(x),
        service.engine.ask(
            "POST",
            ENGINE_PATH,
            arrived=record.started,
            enter=x.enter,
            body=body,
            headers={"Content-Type": "application/json"},
        ) as reply,
    ):
        if not (reply.status == 200 and reply.streams):
            raise await _refused(reply, settings)
        begun = False
        async for text in _texts(reply, record):
            if not begun:
                begun = True
                x.enter("answer")
                if streams:
                    await x.client.start(200, STREAM_HEADERS)
            if streams:
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
    }
    if streams:
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
        chunk = json.loads(data)
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
        return bad_request(
            f"the conversation has {error.get('n_prompt_tokens', 'too many')} tokens and a slot "
            f"holds {settings.context_per_slot}: send less"
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
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + _json(value) + b"\n\n"
