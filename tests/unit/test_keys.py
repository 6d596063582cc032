"""Files of API keys: what a line may say, and that no message repeats what may be a key."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from datetime import UTC, date, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge import keys
from edge.keys import ApiKey, KeysError, parse

A, B = "a" * 64, "0123456789abcdef" * 4
CLEAR = "edge-" + "Ab3_-" * 8 + "xyz"


def test_a_file_with_a_key_itself() -> None:
    assert keys.secret(f"{CLEAR}\n", "f") == CLEAR


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"till-3 {A} rate=60\n# more\nkiosk {B}\n", "it is a list of keys"),
        (f"till-3 {CLEAR}\n", "there is more in it than one word"),
        (f"{CLEAR} {CLEAR}", "there is more in it than one word"),
        ("edge-\u00e9", "what is in it is none"),
        (" \n", "it is empty"),
    ],
)
def test_a_file_that_has_no_key_in_the_clear(text: str, found: str) -> None:
    with pytest.raises(KeysError) as caught:
        keys.secret(text, "my.key")
    assert str(caught.value).startswith("my.key must hold one key in the clear")
    assert found in str(caught.value)
    assert CLEAR not in str(caught.value)


def test_a_file() -> None:
    text = f"""# the shop's tills
till-3 {A} rate=60 expires=2027-01-31

  kiosk.north\t{B.upper()}   # by the door
"""
    end = int(datetime(2027, 2, 1, tzinfo=UTC).timestamp())
    assert parse(text, "keys") == (ApiKey("till-3", A, 60, end), ApiKey("kiosk.north", B))
    assert asdict(parse(text, "keys")[0]) == {
        "name": "till-3", "sha256": A, "rate_per_minute": 60, "expires": end
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "\n\n", "# nobody yet\n"])
def test_a_file_may_hold_no_key(text: str) -> None:
    assert parse(text, "keys") == ()


def test_the_last_day_is_valid_to_its_end() -> None:
    (key,) = parse(f"a {A} expires=2026-12-31", "keys")
    new_year = datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    assert not key.expired(new_year - 0.001)
    assert key.expired(new_year)
    assert key.last_day == date(2026, 12, 31)
    assert keys.valid([key, ApiKey("b", B)], new_year) == [ApiKey("b", B)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("till", "the second word must be the key's SHA-256"),
        (f"till {A[1:]}", "the second word must be the key's SHA-256"),
        (f"till {A}a", "the second word must be the key's SHA-256"),
        (f"host {A}", "the name host is the host's own"),
        (f"{'n' * 65} {A}", "the first word is no name"),
        (f"tïll {A}", "the first word is no name"),
        (f"a/b {A}", "the first word is no name"),
        (f"till {A} rate=0", "from 1 to 100000"),
        (f"till {A} rate=100001", "from 1 to 100000"),
        (f"till {A} rate=1.5", "from 1 to 100000"),
        (f"till {A} rate=", "from 1 to 100000"),
        (f"till {A} rate=٣", "from 1 to 100000"),
        (f"till {A} expires=2026-02-30", "expires must be a day"),
        (f"till {A} expires=20260130", "expires must be a day"),
        (f"till {A} expires=", "expires must be a day"),
        (f"till {A} limit=3", "there may only be rate=N and expires="),
        (f"till {A} 60", "there may only be rate=N and expires="),
        (f"till {A} rate=1 rate=2", "rate= is there twice"),
    ],
)
def test_a_line_that_cannot_be_used(line: str, why: str) -> None:
    with pytest.raises(KeysError) as caught:
        parse(f"# first\n{line}\n", "inventory/keys")
    assert str(caught.value).startswith("inventory/keys, line 2: ")
    assert why in str(caught.value)


def test_all_lines_in_one_error() -> None:
    with pytest.raises(KeysError) as caught:
        parse(f"a {A}\nhost {B}\na {B}\nb {A}\n", "keys")
    assert str(caught.value).splitlines() == [
        "keys, line 2: the name host is the host's own; take another",
        "keys, line 3: the name a is there twice; `edge key new` takes others",
        "keys, line 4: b has the key of a; make one for each",
    ]


@pytest.mark.parametrize(
    "line", [f"till {CLEAR}", CLEAR, f"till {A} key={CLEAR}", f"# {CLEAR}", f'"{CLEAR}"']
)
def test_a_key_in_the_clear_is_refused_and_not_repeated(line: str) -> None:
    with pytest.raises(KeysError, match="line 1: it holds a key in the clear") as caught:
        parse(line, "keys")
    assert CLEAR not in str(caught.value)


@given(st.lists(st.text("ZXJ=_.%", min_size=1), min_size=1).map(" ".join))
@example(f"ZXJZXJ {A}X")
@example(f"till {A} rate=ZXJ")
@example(f"till {A} expires=ZXJ")
@example(f"till {A} ZXJ=3")
def test_no_message_repeats_a_word_of_the_file(line: str) -> None:
    """Any of them may be a key; no message of ours has a Z, an X or a J."""
    with pytest.raises(KeysError) as caught:
        parse(line, "keys")
    assert not set("ZXJ") & set(str(caught.value))
    assert A not in str(caught.value)


def test_a_new_key_is_random_and_its_line_reads_back() -> None:
    first, made = keys.make("till-3", 60, date(2027, 1, 31))
    second, _ = keys.make("till-3")
    assert first != second
    assert len(first) == len("edge-") + 43
    assert made.sha256 == hashlib.sha256(first.encode()).hexdigest()
    assert parse(made.line, "keys") == (made,)
    assert first not in repr(made) + made.line


@pytest.mark.parametrize("name", ["host", "", "a b", "#a", "n" * 65, "a\n"])
def test_a_new_key_needs_a_name(name: str) -> None:
    with pytest.raises(KeysError, match=r"take another|is no name"):
        keys.make(name)


def test_a_key_is_no_name() -> None:
    with pytest.raises(KeysError) as caught:
        keys.make(CLEAR)
    assert CLEAR not in str(caught.value)


def test_a_line_is_taken_out_and_the_rest_left_alone() -> None:
    text = f"# the tills\r\ntill {A}\n\n  till-2   {B} # mine\nlast"
    assert keys.without(text, "till") == f"# the tills\r\n\n  till-2   {B} # mine\nlast"
    assert keys.without(text, "till-2") == f"# the tills\r\ntill {A}\n\nlast"
