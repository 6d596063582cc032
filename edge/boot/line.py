"""A kernel command line as words: splitting it as the kernel does, and editing our words only."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

BLANKS = " \t\n\v\f\r"
REST_IS_FOR_INIT = "--"
# Parameters that may stand there several times, each with a meaning of its own.
CUMULATIVE = ("cgroup_enable", "cgroup_disable")
OPPOSITE = {"cgroup_enable": "cgroup_disable", "cgroup_disable": "cgroup_enable"}


class LineError(ValueError):
    """The line is not in a state in which a word can be added to it."""


@dataclass(frozen=True)
class Word:
    """One word, and where it stands: text[start:end]."""

    text: str
    start: int
    end: int


def split(text: str) -> list[Word]:
    """The kernel's words: blanks separate them, but not between double quotes.

    Those after a lone `--`, which are for init, are left out, and so is the `--`.

    Raises:
        LineError: a quote is not closed; a word that is added after it would be part of it.
    """
    return [word for word in _words(text) if word.end <= _end_of_kernels(text)]


def words(text: str) -> list[str]:
    """`split` without places, and without complaints: for looking, not for editing."""
    try:
        return [word.text for word in split(text)]
    except LineError:
        return text.split()


def key(word: str) -> str:
    """What a word sets; the kernel takes "-" and "_" in it for the same."""
    name, equals, _ = word.partition("=")
    name = name.replace("-", "_")
    return word if equals and name in CUMULATIVE else name


def rivals(token: str, theirs: Collection[str]) -> list[str]:
    """The words in `theirs` that set what `token` sets, the token itself included."""
    name, _, value = token.partition("=")
    opposite = f"{OPPOSITE[name]}={value}" if name in OPPOSITE else None
    return [word for word in theirs if key(word) == key(token) or word == opposite]


def edited(text: str, ours: Sequence[str], wanted: Sequence[str]) -> str:
    """`text` with our words `ours` in it made into `wanted`; every other byte stays.

    A word of ours that only has another value now is changed where it stands, one that is not
    wanted goes with one blank beside it, and a new one comes after the last word (before a `--`).
    So a word that is added and removed again leaves what was there, whatever others did meanwhile.

    Raises:
        LineError: a quote is not closed.
    """
    found = _own(split(text), ours)
    missing = [token for token in wanted if token not in {word.text for word in found}]
    changes: list[tuple[int, int, str]] = []
    for word in found:
        if word.text in wanted:
            continue
        same = next((token for token in missing if key(token) == key(word.text)), None)
        if same is not None:
            missing.remove(same)
            changes.append((word.start, word.end, same))
        else:
            changes.append((*_with_a_blank(text, word), ""))
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return _appended(text, missing)


def _own(found: Sequence[Word], ours: Sequence[str]) -> list[Word]:
    """Our words: of several that are alike the last one, which is where we add."""
    left = list(ours)
    own = []
    for word in reversed(found):
        if word.text in left:
            left.remove(word.text)
            own.append(word)
    return own


def _with_a_blank(text: str, word: Word) -> tuple[int, int]:
    if word.start and text[word.start - 1] in BLANKS:
        return word.start - 1, word.end
    return word.start, word.end + (word.end < len(text))


def _appended(text: str, tokens: Sequence[str]) -> str:
    if not tokens:
        return text
    new = " ".join(tokens)
    there = split(text)
    if there:
        return f"{text[: there[-1].end]} {new}{text[there[-1].end :]}"
    end = _end_of_kernels(text)
    if end < len(text):
        # The blank that goes with a word of ours must be one that came with it.
        return f"{text[: end - 1]} {new}{text[end - 1 :]}" if end else f"{new} {text}"
    return f"{text} {new}" if text else new


def _end_of_kernels(text: str) -> int:
    """Where the lone `--` begins, or the end."""
    return next((word.start for word in _words(text) if word.text == REST_IS_FOR_INIT), len(text))


def _words(text: str) -> Iterator[Word]:
    start, quoted = None, False
    for at, character in enumerate(text):
        if character in BLANKS and not quoted:
            if start is not None:
                yield Word(text[start:at], start, at)
            start = None
            continue
        if start is None:
            start = at
        if character == '"':
            quoted = not quoted
    if quoted:
        raise LineError("a double quote in it is not closed")
    if start is not None:
        yield Word(text[start:], start, len(text))
