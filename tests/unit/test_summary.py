"""The table that a run ends with, at every width and for every way that a run can end."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from edge.keys import ApiKey
from edge.plan import HostPlan
from edge.summary import COLUMNS, LOG_WIDTH, Outcome, Row, chat_url, print_table
from tests.unit.recorded import planned

MIB = 1024 * 1024
GATE: dict[str, Any] = {
    "first_token_ms": 90.4,
    "tokens_per_s": 21.56,
    "cpu_variant": "alderlake",
    "memory": {"current": 700 * MIB},
}
KEYS = (ApiKey("till", "a" * 64), ApiKey("kiosk", "b" * 64))
PLANS = {
    "n100": planned("n100", "n100", keys=KEYS, proxy_listen="0.0.0.0"),
    "ryzen": planned("ryzen-3500u", "ryzen", keys=KEYS, proxy_listen="0.0.0.0"),
    "pi5": planned("pi5-8gb", "pi5", keys=KEYS, proxy_listen="::"),
}


def served(name: str, address: str, plan: HostPlan) -> Row:
    return Row(name, address, plan, Outcome(ok=True, serving=True, gate=GATE))


FLEET = [
    served("kiosk-entrance-north", "192.0.2.11", PLANS["n100"]),
    served("edge-ryzen", "edge-ryzen.example.org", PLANS["ryzen"]),
    served("edge-pi5", "2001:db8::31", PLANS["pi5"]),
]
URLS = (
    "http://192.0.2.11:8000",
    "http://edge-ryzen.example.org:8000",
    "http://[2001:db8::31]:8000",
)


def printed(rows: list[Row], width: int | None = None) -> str:
    """What a terminal of that width shows; None: what a log gets."""
    stream = io.StringIO()
    print_table(rows, Console(file=stream, force_terminal=width is not None, width=width,
                              color_system=None, soft_wrap=True))  # fmt: skip
    return stream.getvalue()


def test_a_wide_terminal_has_one_table_with_everything() -> None:
    lines = printed(FLEET, 200).splitlines()
    header = next(line for line in lines if line.startswith("HOST"))
    assert [header.index(name) for name in COLUMNS] == sorted(header.index(n) for n in COLUMNS)
    row = next(line for line in lines if line.startswith("kiosk"))
    cells = [part for part in row.split("  ") if part.strip()]
    assert [cell.strip() for cell in cells] == [
        "kiosk-entrance-north", "n100", "b11541 (release)", "alderlake",
        "qwen2.5-0.5b-instruct-q4_k_m", "3", "2 x 2048", "700 / 1144 MiB", "90 ms", "21.6",
        "http://192.0.2.11:8000",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160, 200])
def test_no_width_cuts_anything_off(width: int) -> None:
    text = printed(FLEET, width)
    assert "…" not in text
    for words in (*URLS, "kiosk-entrance-north", "b11541 (release)", "alderlake", "700 / 1144 MiB",
                  "qwen2.5-0.5b-instruct-q4_k_m", "4 x 2048", "21.6", *COLUMNS):  # fmt: skip
        assert words in text, f"{words} at {width}"


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_no_line_of_a_table_is_wider_than_the_terminal(width: int) -> None:
    table = printed(FLEET, width).split("kiosk-entrance-north: takes effect")[0]
    assert max(map(len, table.splitlines())) <= width


def test_in_a_narrow_terminal_the_first_table_says_where_to_go() -> None:
    tables = printed(FLEET, 80).split("HOST ")[1:]
    assert 2 <= len(tables) <= 3
    assert "ADDRESS" in tables[0].splitlines()[0]
    for table in tables:
        for row in FLEET:
            assert f"\n{row.host}" in table


def test_a_log_has_one_line_a_host_whatever_its_width() -> None:
    assert printed(FLEET, None).count("HOST ") == 1
    assert len(max(printed(FLEET, None).splitlines(), key=len)) <= LOG_WIDTH


def test_wide_characters_keep_the_columns_apart() -> None:
    lines = printed([served("边缘-一", "192.0.2.1", PLANS["n100"]), FLEET[1]], 200).splitlines()
    assert any(line.startswith("边缘-一     n100") for line in lines)


FAILED = {
    "rolled-back": (
        Outcome(False, "no answer within 180 s", rolled_back=True, serving=True), "",
        "no answer within 180 s (went back to what was last good; serves again)",
    ),
    "rolled-back-in-vain": (
        Outcome(False, "no answer within 180 s", rolled_back=True), "",
        "no answer within 180 s (went back to what was last good; does NOT serve)",
    ),
    "stopped": (Outcome(False, "the engine ended at once"), "", "the engine ended at once"),
    "unreachable": (
        Outcome(False, "not reached: Could not connect (Unable to connect to port 22 on "
                "192.0.2.9); is it on?"), "",
        "not reached: Could not connect (Unable to connect to port 22 on 192.0.2.9); is it on?",
    ),
    "preflight": (None, "not provisioned: / is read-only", "not provisioned: / is read-only"),
    "brackets": (None, "[red]no[/red] markup", "[red]no[/red] markup"),
    "mute": (None, "", "see above"),
}  # fmt: skip


@pytest.mark.parametrize("width", [None, 80])
@pytest.mark.parametrize("name", FAILED)
def test_a_failed_host_has_its_reason(name: str, width: int | None) -> None:
    outcome, trouble, says = FAILED[name]
    for plan in (None, PLANS["n100"]):
        text = printed([FLEET[0], Row("bad", "192.0.2.9", plan, outcome, trouble)], width)
        assert f"\nbad: FAILED: {says}\n" in text
        assert text.endswith("1 of 2 hosts serve and are as they should be.\n")


def test_trouble_counts_even_after_an_outcome() -> None:
    row = replace(FLEET[0], trouble="it could not be surveyed")
    text = printed([row])
    assert "kiosk-entrance-north: FAILED: it could not be surveyed" in text
    assert "0 of 1 hosts serve" in text


def test_nobody_served_needs_no_table() -> None:
    assert "HOST" not in printed([Row("bad", "192.0.2.9", None, None, "no")])


def test_what_waits_for_a_reboot_and_what_to_know_is_said() -> None:
    text = printed(FLEET, 80)
    assert (
        "\nkiosk-entrance-north: takes effect at the next boot: intel_idle.max_cstate=2 "
        "processor.max_cstate=1\n"
    ) in text
    (warning,) = PLANS["ryzen"].warnings
    assert f"\nedge-ryzen: note: {warning}\n" in text
    assert "edge-pi5: " not in text  # nothing waits there


def test_it_is_said_who_may_ask() -> None:
    assert "\nWho may ask: the network, 2 keys.\n" in printed(FLEET, 80)
    alone = served("kitchen", "192.0.2.12", planned("n100", "n100"))
    text = printed([*FLEET, alone], 80)
    assert "\nWho may ask kitchen: this host only, no keys.\n" in text
    assert "Who may ask kiosk-entrance-north, edge-ryzen, edge-pi5: the network, 2 keys.\n" in text


def test_what_the_gate_did_not_measure_is_a_question_mark() -> None:
    text = printed([Row("box", "192.0.2.1", PLANS["n100"], Outcome(ok=True))], 200)
    assert "? / 1144 MiB" in text
    assert Outcome(ok=True).speed == "not measured"
    assert Outcome(ok=True, gate=GATE).speed == "first token 90 ms, 21.6 tokens/s"


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("0.0.0.0", "http://192.0.2.1:80"),
        ("::", "http://192.0.2.1:80"),
        ("192.0.2.77", "http://192.0.2.77:80"),
        ("127.0.0.1", "http://127.0.0.1:80 (on the host)"),
        ("::1", "http://[::1]:80 (on the host)"),
        ("::ffff:127.0.0.1", "http://[::ffff:127.0.0.1]:80 (on the host)"),
    ],
)
def test_the_address_is_one_that_answers(listen: str, url: str) -> None:
    assert chat_url("192.0.2.1", listen, 80) == url


def test_the_agents_answer_is_read() -> None:
    raw = {"ok": False, "reason": "no", "restarted": ["a"], "rolled_back": True, "serving": True,
           "journal": ["x"], "gate": None, "more": 1}  # fmt: skip
    assert Outcome.from_agent(raw) == Outcome(
        False, "no", ("a",), rolled_back=True, serving=True, journal=("x",)
    )
