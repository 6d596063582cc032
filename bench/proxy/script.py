"""What the scripted engine says, so that both ends know it: text with the times of its sending.

A token is `<stream.number sent received>` and a word: `sent` and `received` are CLOCK_MONOTONIC
in nanoseconds, of this token's sending and of its request's arrival at the engine. They travel in
the text, which every system must hand on as it is, and all processes of a machine share the clock.
"""

from __future__ import annotations

import json
import re

TOKENS_PER_S = 20.0
WORDS = (" the", " 边缘", "设备", " café", ' "quoted"', "\n\n", "🙂", "\t```py\n", " ok.", "\\n")
"""In turn; between them they have what a proxy can get wrong in UTF-8, JSON and lines."""

_ASKED = re.compile(rb"stream (\d+) of (\d+) tokens")
_TOKEN = re.compile(r"<(\d+)\.(\d+) (\d+) (\d+)>")
_LONGEST = 80  # characters of one token


class Wrong(Exception):  # noqa: N818  (says what happened)
    """A stream is not what the engine said."""


def prompt(stream: int, tokens: int) -> str:
    """The question that asks for `tokens` tokens as stream number `stream`."""
    return (
        f"Benchmark: stream {stream} of {tokens} tokens. Write quicksort in Python, explain how it "
        "works, and say when merge sort would be the better choice."
    )


def asked(body: bytes) -> tuple[int, int]:
    """Stream number and number of tokens that a request's body asks for.

    Raises:
        ValueError: it asks for none.
    """
    found = _ASKED.search(body)
    if found is None:
        raise ValueError("the request does not ask for a stream")
    return int(found[1]), int(found[2])


def word_json(number: int) -> bytes:
    """The word of token `number` inside a JSON string, in UTF-8 like llama-server's."""
    return json.dumps(WORDS[number % len(WORDS)], ensure_ascii=False)[1:-1].encode()


class Reader:
    """Takes the text of one stream as it comes, and checks it to the character."""

    def __init__(self, stream: int) -> None:
        self.tokens: list[tuple[int, int, int]] = []
        """(sent, received, arrived) of each token, in nanoseconds."""
        self._stream = stream
        self._rest = ""

    def feed(self, text: str, arrived: int) -> None:
        """`text` came at `arrived`; tokens that it completes get this time.

        Raises:
            Wrong: the text is not the engine's.
        """
        self._rest += text
        while self._rest:
            found = _TOKEN.match(self._rest)
            word = WORDS[len(self.tokens) % len(WORDS)]
            if found is None or len(self._rest) < found.end() + len(word):
                if len(self._rest) > _LONGEST:
                    raise Wrong(f"after {len(self.tokens)} tokens: {self._rest[:_LONGEST]!r}")
                return
            name = (int(found[1]), int(found[2]))
            if name != (self._stream, len(self.tokens)) or not self._rest.startswith(
                word, found.end()
            ):
                raise Wrong(f"after {len(self.tokens)} tokens: {self._rest[:_LONGEST]!r}")
            self.tokens.append((int(found[3]), int(found[4]), arrived))
            self._rest = self._rest[found.end() + len(word) :]

    def end(self, tokens: int) -> None:
        """The stream is over.

        Raises:
            Wrong: it has not `tokens` tokens, or something after them.
        """
        if len(self.tokens) != tokens or self._rest:
            raise Wrong(f"{len(self.tokens)} of {tokens} tokens")
