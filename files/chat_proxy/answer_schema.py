"""JSON schemas in a request, which the engine makes a grammar of: bounded before it sees them.

The engine's loop, which all answers share, reads the grammar and tries every token of the
vocabulary on it. Seen with b11312 and a vocabulary of 49152: a `pattern` of 24 characters keeps it
busy for minutes, 30 definitions that name the next one twice do as well, an enum of 1000 numbers
takes a second, and two `$ref` that lead to each other below an `allOf` end it.
"""

import json
from typing import Any

MAX_BYTES = 16 << 10
"""As JSON without spaces."""
MAX_VALUES = 500
"""Objects, lists, words and numbers in it, as the engine meets them: what a `$ref` leads to counts
each time, what stands below a list of types once for each. So no schema contains itself."""
MAX_COUNT = 1000
MAX_NAME_CHARS = 128

_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def check_schema(schema: Any) -> str | None:
    """What is wrong with a JSON schema, or None. It must be nested to a bounded depth only."""
    if not isinstance(schema, dict):
        return "the schema must be an object"
    as_json = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    if len(as_json.encode("utf-8", "replace")) > MAX_BYTES:
        return f"the schema is larger than {MAX_BYTES} bytes"
    left = MAX_VALUES
    todo: list[tuple[Any, int]] = [(schema, 1)]
    while todo:
        value, times = todo.pop()
        left -= times
        if left < 0:
            return f"the schema has more than {MAX_VALUES} values, or a $ref to where it stands"
        if isinstance(value, list):
            todo += [(part, times) for part in value]
        elif isinstance(value, dict):
            if wrong := _keywords(value):
                return wrong
            types = value.get("type")
            times *= len(types) if isinstance(types, list) and types else 1
            todo += [(part, times) for part in value.values()]
            if isinstance(ref := value.get("$ref"), str):
                target = _target(ref, schema)
                if not isinstance(target, dict):
                    return "each $ref must be #/… to a schema in this one"
                todo.append((target, times))
    return None


def _keywords(part: dict[str, Any]) -> str | None:
    if any(len(name) > MAX_NAME_CHARS for name in part):
        return f"names in the schema may have {MAX_NAME_CHARS} characters"
    # where these are names of properties, their values are schemas
    if isinstance(part.get("pattern"), str):
        return "this server takes no pattern in a schema: leave it out, or use enum"
    for name in _COUNTS:
        count = part.get(name)
        if isinstance(count, (int, float)) and not 0 <= count <= MAX_COUNT:
            return f"{name} in the schema must be from 0 to {MAX_COUNT}"
    return None


def _target(ref: str, schema: dict[str, Any]) -> Any:
    """What `ref` leads to, as the engine goes: without any escapes; None: nowhere."""
    if not ref.startswith("#/"):
        return None
    found: Any = schema
    for step in ref[2:].split("/"):
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and step in map(str, range(len(found))):
            found = found[int(step)]
        else:
            return None
    return found
