"""A conversation that is longer than a slot's context loses its oldest turns, not the request."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

Turn = dict[str, str]
Count = Callable[[list[Turn]], Awaitable["int | None"]]


async def fit(body: bytes, budget: int, count: Count) -> tuple[bytes, int]:
    """Drop as many of the oldest turns as must go for the prompt to have `budget` tokens at most.

    The system message and the last question stay, and what is kept begins with a question: so it
    may still be too long. `count` tells how many tokens the engine makes of messages; None means
    that it cannot tell, and then nothing is dropped.

    Returns:
        The body for the engine, and the number of messages that were dropped.
    """
    if len(body) <= budget:  # a token has one byte at least, and JSON adds more than a template
        return body, 0
    request: dict[str, Any] = json.loads(body)
    system, turns = _split(request["messages"])
    starts = _starts(turns, budget)
    # The first that fits is looked for by halving: the later the start, the fewer the tokens.
    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        found = await count([*system, *turns[starts[middle] :]])
        if found is None:
            return body, 0
        low, high = (low, middle) if found <= budget else (middle + 1, high)
    dropped = starts[low]
    if not dropped:
        return body, 0
    request["messages"] = [*system, *turns[dropped:]]
    return json.dumps(request, ensure_ascii=False).encode(), dropped


def _split(messages: list[Turn]) -> tuple[list[Turn], list[Turn]]:
    first = 1 if messages[0]["role"] == "system" else 0
    return messages[:first], messages[first:]


def _starts(turns: list[Turn], step: int) -> list[int]:
    """Where the kept part may begin: all, then questions about `step` bytes apart, then the last.

    Steps, because the engine keeps what it has read of a conversation as long as it begins the
    same: with a cut that moved at every turn, it would read the whole of it anew each time.
    """
    starts, size, marks = [0], 0, 0
    for index, turn in enumerate(turns):
        if index and turn["role"] == "user" and size // step > marks:
            marks = size // step
            starts.append(index)
        size += len(turn["content"].encode())
    last = len(turns) - 1
    return starts if starts[-1] == last else [*starts, last]
