"""The event parser: any cut of the bytes gives the same events."""

import itertools

import pytest
from chat_proxy.sse import MAX_EVENT_BYTES, Event, Parser, TooLong
from hypothesis import given
from hypothesis import strategies as st

TEXT = "你好 👩‍🔬 `x\\n` é".encode()


def events(*chunks: bytes) -> list[Event]:
    parser = Parser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_split_in_two_and_every_byte_alone(end: bytes) -> None:
    lines = [b"data: " + TEXT, b"", b": comment", b"", b"event: e", b"data:a", b"data", b"", b""]
    whole = end.join(lines)
    expected = [Event(TEXT), Event(b"a\n", b"e")]
    assert events(whole) == expected
    for at in range(len(whole) + 1):
        assert events(whole[:at], whole[at:]) == expected, at
    assert events(*(bytes([byte]) for byte in whole)) == expected


def test_an_event_comes_out_with_its_last_byte() -> None:
    for whole in (b"data: x\n\n", b"data: x\r\r"):
        parser = Parser()
        assert parser.feed(whole[:-1]) == []
        assert parser.feed(whole[-1:]) == [Event(b"x")]


def test_what_is_no_data_makes_no_event() -> None:
    assert (
        events(b":\n\n", b"id: 1\nretry: 5\nodd\n\n", b"event: x\n\n", b"data: left open\n") == []
    )
    assert events(b"\xef\xbb\xbfdata: after a byte order mark\n\n") == [
        Event(b"after a byte order mark")
    ]
    assert events(b"data:  one space goes\n\n") == [Event(b" one space goes")]


def test_an_event_without_end_is_refused() -> None:
    with pytest.raises(TooLong):
        events(*[b"x" * (1 << 20)] * (MAX_EVENT_BYTES // (1 << 20) + 1))
    with pytest.raises(TooLong):
        events(*[b"data: " + b"x" * (1 << 20) + b"\n"] * (MAX_EVENT_BYTES // (1 << 20) + 1))


pieces = st.lists(
    st.sampled_from([b"data: ", b"\n", b"\r", b"\r\n", b":", b" ", b"event: ", TEXT, b"\xe4"])
)


@given(pieces, st.lists(st.integers(0, 200)))
def test_any_stream_cut_anywhere(parts: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(parts)
    at = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    assert events(*(whole[a:b] for a, b in itertools.pairwise(at))) == events(whole)
