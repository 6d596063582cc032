"""What a body for /v1 may hold: the fields of OpenAI's API, and the engine's own harmless ones.

The engine (llama-server, b11312) takes far more, and trusts it: a number of a few digits makes it
allocate gigabytes, a grammar of a few bytes keeps its only loop busy for minutes. So what is not
in the tables here is refused, and each entry says what its field may be.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .answer_schema import check_schema
from .config import MAX_MESSAGES
from .problem import bad_request

MAX_DEPTH = 32
"""Lists and objects inside each other, counted from a field's value."""
MAX_PROBABILITIES = 20
"""Likeliest tokens with each token of the answer: OpenAI's own limit."""
MAX_STOPS, MAX_STOP_CHARS = 16, 256
MAX_BIASES, MAX_BIAS_CHARS = 300, 64
MAX_TOOLS = 32
MAX_KWARGS, MAX_KWARG_CHARS = 16, 256
MAX_LOOK_BACK = 4096
"""Tokens that a penalty looks back on. The engine allocates room for as many as it is told."""

_WHOLE = 2**31 - 1
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")  # OpenAI's own rule

Check = Callable[[Any], str | None]
"""Says what is wrong with a field's value, which is not null; None: nothing."""


@dataclass(frozen=True)
class Number:
    """A number from `low` to `high`."""

    low: float = -_WHOLE
    high: float = _WHOLE
    whole: bool = False

    def __call__(self, value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return "must be a number"
        if not self.low <= value <= self.high:  # also refuses nan
            return f"must be from {self.low:.10g} to {self.high:.10g}"
        if self.whole and value != int(value):
            return "must be a whole number"
        return None


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "must be a text"


def _ignored(_: Any) -> str | None:
    """The engine does not look at it."""
    return None


def _one(value: Any) -> str | None:
    return None if value == 1 else "this server gives one answer to a request"


def _flag_or_probabilities(value: Any) -> str | None:
    return None if isinstance(value, bool) else _probabilities(value)


def _prompt(value: Any) -> str | None:
    if isinstance(value, str):
        return None
    if not isinstance(value, list):
        return "must be a text or a list of tokens"
    several = len(value) > 1 and not any(isinstance(part, (int, float)) for part in value)
    return "this server takes one prompt a request" if several else None


def _stop(value: Any) -> str | None:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        return "must be a text or a list of texts"
    if len(stops) > MAX_STOPS or any(len(one) > MAX_STOP_CHARS for one in stops):
        return f"{MAX_STOPS} texts of {MAX_STOP_CHARS} characters at most"
    return None


def _logit_bias(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "must be an object of token: bias"
    if len(value) > MAX_BIASES or any(len(token) > MAX_BIAS_CHARS for token in value):
        return f"{MAX_BIASES} tokens of {MAX_BIAS_CHARS} characters at most"
    if not all(bias is False or _number(bias) is None for bias in value.values()):
        return "must be an object of token: bias, each a number"
    return None


def _kwargs(value: Any) -> str | None:
    if not isinstance(value, dict) or any(isinstance(one, (dict, list)) for one in value.values()):
        return "must be an object of texts, numbers, true and false"
    texts = [one for one in (*value, *value.values()) if isinstance(one, str)]
    if len(value) > MAX_KWARGS or any(len(one) > MAX_KWARG_CHARS for one in texts):
        return f"{MAX_KWARGS} values of {MAX_KWARG_CHARS} characters at most"
    return None


def _response_format(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "must be an object with a type"
    wrapper = value.get("json_schema")
    if wrapper is not None and not isinstance(wrapper, dict):
        return "json_schema: must be an object with a schema"
    # the engine looks at either, depending on the type
    for schema in (value.get("schema"), (wrapper or {}).get("schema")):
        if schema is not None and (wrong := check_schema(schema)):
            return wrong
    return None


def _tools(value: Any) -> str | None:
    if not isinstance(value, list):
        return "must be a list"
    if len(value) > MAX_TOOLS:
        return f"{MAX_TOOLS} at most, not {len(value)}"
    for number, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type") != "function":
            return f'{number}: must be {{"type": "function", "function": {{…}}}}'
        name, about = function.get("name"), function.get("description")
        if not isinstance(name, str) or not _TOOL_NAME.match(name):
            return f"{number}: the name must be 1 to 64 letters, digits, _ and -"
        if not isinstance(about, (str, type(None))):
            return f"{number}: the description must be a text"
        parameters = function.get("parameters")
        if parameters is not None and (wrong := check_schema(parameters)):
            return f"{number}: parameters: {wrong}"
    return None


def _messages(value: Any) -> str | None:
    if not isinstance(value, list):
        return "must be a list"
    if len(value) > MAX_MESSAGES:
        return f"{MAX_MESSAGES} at most, not {len(value)}"
    for number, message in enumerate(value):
        if not isinstance(message, dict):
            return f"{number}: must be an object with role and content"
        if wrong := _content(message.get("content")) or _calls(message.get("tool_calls")):
            return f"{number}: {wrong}"
    return None


def _content(content: Any) -> str | None:
    if isinstance(content, (str, type(None))):
        return None
    if not isinstance(content, list):
        return "the content must be a text or a list of parts"
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            return "this model reads text only: each part must be of the type text"
        if not isinstance(part.get("text"), str):
            return "the text of a part must be a text"
    return None


def _calls(calls: Any) -> str | None:
    """The arguments of a call are JSON in a text, which the engine reads as well."""
    if calls is None:
        return None
    functions = [
        one.get("function") if isinstance(one, dict) else None
        for one in (calls if isinstance(calls, list) else [calls])
    ]
    if not all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in functions):
        return "tool_calls must be a list, each with a function and its name"
    for function in functions:
        arguments = function.get("arguments") if isinstance(function, dict) else None
        try:
            inside = json.loads(arguments) if isinstance(arguments, str) else None
        except RecursionError:
            return _TOO_DEEP
        except ValueError:
            continue  # a model wrote them: the engine takes that as well
        if _deep(inside):
            return _TOO_DEEP
    return None


_TOO_DEEP = f"nested more than {MAX_DEPTH} deep"


def _deep(value: Any) -> bool:
    level = _containers([value])
    for _ in range(MAX_DEPTH):
        level = _containers(
            part for one in level for part in (one.values() if isinstance(one, dict) else one)
        )
        if not level:
            return False
    return bool(level)


def _containers(values: Iterable[Any]) -> list[Any]:
    return [one for one in values if isinstance(one, (dict, list))]


_number = Number()
_whole = Number(whole=True)
_probabilities = Number(0, MAX_PROBABILITIES, whole=True)
_look_back = Number(-1, MAX_LOOK_BACK, whole=True)

_BOTH: dict[str, Check] = {
    # OpenAI's
    "model": _text,
    "frequency_penalty": _number,
    "logit_bias": _logit_bias,
    "logprobs": _flag_or_probabilities,
    "max_tokens": _whole,
    "n": _one,
    "presence_penalty": _number,
    "seed": Number(-(2**63), 2**63, whole=True),
    "stop": _stop,
    "stream": _flag,
    "stream_options": _ignored,  # but for include_usage
    "temperature": _number,
    "top_p": _number,
    "user": _ignored,
    # the engine's
    "adaptive_decay": _number,
    "adaptive_target": _number,
    "cache_prompt": _flag,
    "dry_allowed_length": _whole,
    "dry_base": _number,
    "dry_multiplier": _number,
    "dry_penalty_last_n": _look_back,
    "dynatemp_exponent": _number,
    "dynatemp_range": _number,
    "ignore_eos": _flag,
    "json_schema": check_schema,
    "min_keep": _whole,
    "min_p": _number,
    "mirostat": _whole,
    "mirostat_eta": _number,
    "mirostat_tau": _number,
    "n_cmpl": _one,
    "n_keep": _whole,
    "n_predict": _whole,
    "n_probs": _probabilities,
    "post_sampling_probs": _flag,
    "repeat_last_n": _look_back,
    "repeat_penalty": _number,
    "return_progress": _flag,
    "return_tokens": _flag,
    "t_max_predict_ms": _whole,
    "timings_per_token": _flag,
    "top_k": _whole,
    "top_n_sigma": _number,
    "typical_p": _number,
    "xtc_probability": _number,
    "xtc_threshold": _number,
}

CHAT: dict[str, Check] = {
    **_BOTH,
    # OpenAI's
    "messages": _messages,
    "max_completion_tokens": _whole,
    "parallel_tool_calls": _flag,
    "reasoning_effort": _text,
    "response_format": _response_format,
    "tool_choice": _ignored,  # but for a word
    "tools": _tools,
    "top_logprobs": _probabilities,
    # OpenAI's, and nothing to the engine
    "audio": _ignored,
    "function_call": _ignored,
    "functions": _ignored,
    "metadata": _ignored,
    "modalities": _ignored,
    "moderation": _ignored,
    "prediction": _ignored,
    "prompt_cache_key": _ignored,
    "prompt_cache_options": _ignored,
    "prompt_cache_retention": _ignored,
    "safety_identifier": _ignored,
    "service_tier": _ignored,
    "store": _ignored,
    "verbosity": _ignored,
    "web_search_options": _ignored,
    # the engine's
    "chat_template_kwargs": _kwargs,
    "reasoning_budget_tokens": _whole,
    "reasoning_format": _text,
    "thinking_budget_tokens": _whole,
}

COMPLETIONS: dict[str, Check] = {
    **_BOTH,
    "prompt": _prompt,
    # OpenAI's; the engine says of these that it has them not
    "best_of": _one,
    "echo": _flag,
    "suffix": _text,
}

_INSTEAD = {
    "grammar": "give a JSON schema in response_format",
    "messages": "they belong to /v1/chat/completions",
    "prompt": "it belongs to /v1/completions",
    "id_slot": "slots are given in turn",
}


def check(request: dict[str, Any], fields: dict[str, Check]) -> None:
    """Refuse what the engine should not see. `fields` is `CHAT` or `COMPLETIONS`.

    Raises:
        Problem: 400, which names the first field that is wrong.
    """
    for name, value in request.items():
        allowed = fields.get(name)
        if allowed is None:
            instead = _INSTEAD.get(name, "leave it out")
            raise bad_request(f"{_shown(name)}: this server does not take this field: {instead}")
        if value is None:  # to the engine as if it were not there
            continue
        if wrong := _TOO_DEEP if _deep(value) else allowed(value):
            raise bad_request(f"{name}: {wrong}")


def _shown(name: str) -> str:
    return name if re.fullmatch(r"[\w.-]{1,64}", name) and name.isprintable() else repr(name[:64])
