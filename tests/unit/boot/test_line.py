"""Editing a kernel command line: our words, and not one byte of anybody else's."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge.boot.line import LineError, edited, key, rivals, split, words

STOCK = 'console=tty1 root=UUID=1ab dyndbg="file x +p; file y +p" ro quiet'


def test_blanks_between_quotes_are_part_of_a_word() -> None:
    assert words(STOCK)[2] == 'dyndbg="file x +p; file y +p"'
    assert words('"a b" c"d e"f\tg') == ['"a b"', 'c"d e"f', "g"]


def test_what_follows_two_dashes_is_for_init() -> None:
    assert words("quiet -- a=1") == ["quiet"]
    assert words("quiet --- a=1") == ["quiet", "---", "a=1"]
    assert edited("quiet -- a=1", [], ["a=1"]) == "quiet a=1 -- a=1"
    assert edited("-- x", [], ["a=1"]) == "a=1 -- x"


def test_a_quote_that_is_not_closed_takes_no_word() -> None:
    with pytest.raises(LineError, match="not closed"):
        edited('quiet dyndbg="file', [], ["a=1"])
    assert words('quiet dyndbg="file x') == ["quiet", 'dyndbg="file', "x"]


def test_dash_and_underscore_are_the_same_in_a_name() -> None:
    assert key("intel-idle.max-cstate=1") == key("intel_idle.max_cstate=9")
    assert key("a=x-y") == "a"


def test_what_sets_the_same() -> None:
    assert rivals("a=1", ["a=2", "b=1", "a", "ab=1"]) == ["a=2", "a"]
    # Several may stand side by side; only the opposite of ours is in our way.
    theirs = ["cgroup_enable=cpuset", "cgroup_disable=memory", "cgroup_enable=memory"]
    assert rivals("cgroup_enable=memory", theirs) == theirs[1:]


@pytest.mark.parametrize(
    ("ours", "wanted", "expected"),
    [
        ([], ["a=1", "b=2"], "quiet splash a=1 b=2\r\n"),
        (["splash"], [], "quiet\r\n"),
        (["quiet"], [], "splash\r\n"),
        (["quiet", "splash"], [], "\r\n"),
        (["quiet"], ["quiet"], "quiet splash\r\n"),
        (["gone=1"], [], "quiet splash\r\n"),
    ],
)
def test_edits(ours: list[str], wanted: list[str], expected: str) -> None:
    line, end = "quiet splash", "\r\n"
    assert edited(line, ours, wanted) + end == expected


def test_another_value_goes_where_the_old_one_stood() -> None:
    assert edited("quiet a=1 splash", ["a=1"], ["a=2", "b=1"]) == "quiet a=2 splash b=1"


BYTES = st.text(st.sampled_from(' \t\n\r"=-_.ab1/:,#$é\udcff'), max_size=40)
relaxed = settings(deadline=None)  # the machine may be busy
TOKENS = st.lists(st.sampled_from(["a=1", "a=2", "b.c=1", "x"]), unique=True, max_size=3)


def _balanced(text: str) -> bool:
    try:
        split(text)
    except LineError:
        return False
    return True


LINES = BYTES.filter(_balanced)


@example("\r--", ["a=1", "x"])
@relaxed
@given(LINES, TOKENS)
def test_added_and_removed_again_is_what_was(line: str, tokens: list[str]) -> None:
    added = edited(line, [], tokens)
    assert set(tokens) <= set(words(added))
    assert edited(added, tokens, []) == line


@relaxed
@given(LINES, TOKENS, TOKENS)
def test_a_second_time_changes_nothing(line: str, ours: list[str], wanted: list[str]) -> None:
    once = edited(line, ours, wanted)
    assert edited(once, wanted, wanted) == once


@relaxed
@given(LINES, TOKENS, TOKENS)
def test_words_of_others_stay_in_their_order(line: str, first: list[str], then: list[str]) -> None:
    changed = edited(edited(line, [], first), first, then)
    left = words(changed)
    for token in reversed(then):
        at = len(left) - 1 - left[::-1].index(token)
        del left[at]
    assert left == words(line)


@relaxed
@given(LINES, TOKENS, st.sampled_from(["z=9", "other"]))
def test_what_others_add_meanwhile_stays(line: str, tokens: list[str], other: str) -> None:
    theirs = edited(edited(line, [], tokens), [], [other])
    assert edited(theirs, tokens, []) == edited(line, [], [other])
