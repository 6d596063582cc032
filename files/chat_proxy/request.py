"""The body of POST /chat: what it may hold, and what the engine gets for it."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from .config import MAX_MESSAGES, Settings
from .problem import bad_request

# JSON has one kind of number, and some write all of them with a point.
_integral = BeforeValidator(lambda v: int(v) if isinstance(v, float) and v.is_integer() else v)
Stop = Annotated[str, Field(min_length=1, max_length=256)]


class Message(BaseModel):
    """One turn."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "user", "assistant"]
    content: str


class ChatRequest(BaseModel):
    """Either `prompt` or `messages`; what is left out has the server's default."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: str | None = Field(None, min_length=1, description="one question")
    messages: list[Message] | None = Field(
        None,
        min_length=1,
        max_length=MAX_MESSAGES,
        description="a conversation, oldest first; the last one is the user's",
    )
    system: str | None = Field(
        None, description="what the model is told before; instead of a first message of that role"
    )
    max_tokens: Annotated[int, Field(ge=1), _integral] | None = Field(
        None, description="longest answer"
    )
    temperature: float | None = Field(None, ge=0, le=2, description="0: always the likeliest token")
    top_p: float | None = Field(
        None, gt=0, le=1, description="only the likeliest tokens that together have this share"
    )
    seed: Annotated[int, Field(ge=0, lt=2**32), _integral] | None = Field(
        None, description="for the same answer to the same question"
    )
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = Field(
        None, description="the answer ends before any of these"
    )
    stream: bool = Field(True, description="false: one JSON object when the answer is complete")

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
                f"max_tokens: it is above {settings.max_tokens}, the most that this server gives"
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


_MEANINGS = {
    "extra_forbidden": f"no such field; there are {', '.join(ChatRequest.model_fields)}",
    "too_short": "it is empty",
    "string_too_short": "it is empty",
    "missing": "it is missing",
}
"""Where pydantic's own words say less."""


def parse(raw: bytes) -> ChatRequest:
    """Read a request's body.

    Raises:
        Problem: 400, with the first thing that is wrong in one line.
    """
    try:
        return ChatRequest.model_validate_json(raw)
    except ValidationError as err:
        first = err.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:100]  # a key may be of any length
        where = "".join(one if one.isprintable() else "?" for one in where)
        what = _MEANINGS.get(first["type"], first["msg"].removeprefix("Value error, "))
        raise bad_request(f"{where}: {what}" if where else what) from None


@dataclass
class Ask:
    """What stays in memory of a request while it waits."""

    body: bytes
    """The engine's own request."""
    streams: bool
    prompt_tokens: int
    """The longest prompt that leaves room for the answer."""


def prepare(raw: bytes, settings: Settings) -> Ask:
    """Read and check a request's body.

    Raises:
        Problem: 400, with the first thing that is wrong in one line.
    """
    request = parse(raw)
    return Ask(
        request.for_engine(settings),
        request.stream,
        settings.context_per_slot - (request.max_tokens or settings.max_tokens),
    )
