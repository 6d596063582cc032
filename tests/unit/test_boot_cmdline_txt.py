"""The Raspberry Pi's kernel command line: a wrong byte there is a host that does not boot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.boot.cmdline_txt import CmdlineError, with_tokens

TOKENS = ("cgroup_enable=memory", "cgroup_memory=1")
STOCK = "console=serial0,115200 console=tty1 root=PARTUUID=1ab-02 rootfstype=ext4 rootwait"


def test_tokens_go_to_the_end_and_the_order_stays() -> None:
    assert with_tokens(STOCK + "\n", TOKENS) == f"{STOCK} {' '.join(TOKENS)}"


def test_what_is_there_is_not_added_again() -> None:
    once = with_tokens(STOCK, TOKENS)
    assert with_tokens(once, TOKENS) == once
    half = f"cgroup_memory=1 {STOCK}"
    assert with_tokens(half, TOKENS) == f"{half} cgroup_enable=memory"


def test_a_longer_word_is_not_the_token() -> None:
    line = f"{STOCK} cgroup_memory=10"
    assert with_tokens(line, ["cgroup_memory=1"]).split()[-1] == "cgroup_memory=1"


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "\n",
        "console=tty1 rootwait",
        f"{STOCK}\n{STOCK}",
        "console=tty1\nroot=/dev/mmcblk0p2",
        "root=/dev/a root=/dev/b",
        "noroot=/dev/a",
        "# moved to /boot/firmware/cmdline.txt",
    ],
)
def test_a_line_that_is_not_one_with_one_root_is_left_alone(broken: str) -> None:
    with pytest.raises(CmdlineError, match=r"/boot/firmware/cmdline.txt .* mend it by hand"):
        with_tokens(broken, TOKENS)


_WORD = st.text("abcdefgh.=_:,/-0123456789", min_size=1, max_size=12).filter(
    lambda word: not word.startswith("root=")
)


@given(st.lists(_WORD, max_size=8), st.integers(0, 8), st.lists(_WORD, max_size=3, unique=True))
def test_whatever_the_line_nothing_is_lost(words: list[str], at: int, tokens: list[str]) -> None:
    line = [*words[:at], "root=/dev/x", *words[at:]]
    found = with_tokens(" ".join(line) + "\n", tokens)
    assert "\n" not in found
    assert found.split()[: len(line)] == line
    assert set(tokens) <= set(found.split())
    assert with_tokens(found, tokens) == found
