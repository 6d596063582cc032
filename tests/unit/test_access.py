"""Who may ask: never everybody on a network, and said in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge.access import only_this_host, who_may_ask
from edge.artifacts import Cache
from edge.fleet import CHECKOUT, FleetHost
from edge.keys import ApiKey
from edge.plan_text import rows
from edge.planning import SettingsInvalid, check_fleet, plan_host
from edge.settings import Problem, Settings, check_host
from tests.unit.recorded import NOW, attempt, planned, refused, survey_of

GOOD, OVER = ApiKey("till", "a" * 64), ApiKey("kiosk", "b" * 64, None, int(NOW))
LOOPBACK = ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"]
NETWORK = ["0.0.0.0", "::", "192.0.2.7", "::ffff:192.0.2.7", "2001:db8::7", "fe80::1%eth0"]


@pytest.mark.parametrize("listen", LOOPBACK)
def test_the_host_itself_needs_no_key(listen: str) -> None:
    assert only_this_host(listen)
    plan = planned("n100", "n100", proxy_listen=listen)
    assert plan.reasons["proxy.access"] == "this host only, no keys"
    assert planned("n100", "n100", proxy_listen=listen, keys=(GOOD,)).proxy.keys == (GOOD,)


@pytest.mark.parametrize("listen", NETWORK)
def test_a_network_needs_one_that_is_valid(listen: str) -> None:
    assert not only_this_host(listen)
    text = refused("n100", "n100", proxy_listen=listen)
    assert text.startswith(f"box: proxy_listen = {listen!r}: serves the network")
    assert "`edge key new NAME --file inventory/api-keys`" in text
    assert 'api_keys_file = "inventory/api-keys"' in text
    assert 'proxy_listen = "127.0.0.1"' in text
    for keys, why in (((), "there is none"), ((OVER,), "every key has expired")):
        text = refused("n100", "n100", proxy_listen=listen, keys=keys, api_keys_file="our/keys")
        assert f"in our/keys {why}: run `edge key new NAME --file our/keys`" in text
    assert planned("n100", "n100", proxy_listen=listen, keys=(OVER, GOOD)).warnings


def test_an_expired_key_is_a_warning() -> None:
    plan = planned("n100", "n100", proxy_listen="::", keys=(OVER, GOOD))
    assert [warning for warning in plan.warnings if "key" in warning] == [
        "the key kiosk expired after 2027-01-15: who has it is refused; `edge key revoke kiosk` "
        "takes it out"
    ]


@pytest.mark.parametrize(
    ("listen", "keys", "words"),
    [
        ("::1", None, "this host only, no keys"),
        ("::1", (), "this host only, 0 keys"),
        ("127.0.0.1", (GOOD,), "this host only, 1 key"),
        ("0.0.0.0", (GOOD, ApiKey("b", "c" * 64)), "the network, 2 keys"),
        ("0.0.0.0", (GOOD, OVER), "the network, 1 key (1 expired)"),
    ],
)
def test_it_is_said_in_words(listen: str, keys: tuple[ApiKey, ...] | None, words: str) -> None:
    assert who_may_ask(listen, keys, NOW) == words


def test_the_plan_shows_it_and_its_json_holds_names_only() -> None:
    plan = planned("n100", "n100", proxy_listen="::", keys=(GOOD,), cors_origins=["http://a:1"])
    assert ("who may ask", "the network, 1 key", "also from pages of http://a:1") in rows(plan)
    data = plan.to_dict()
    assert data["proxy"]["keys"] == ["till"]
    assert "a" * 64 not in json.dumps(data)
    assert attempt("n100", "n100")[0].to_dict()["proxy"]["keys"] is None  # type: ignore[union-attr]


# --- from the controller's file ------------------------------------------------------------------


def host(name: str, **data: object) -> FleetHost:
    return FleetHost(name, ("n100",), data)


def test_every_host_with_a_file_that_cannot_be_used_is_in_the_one_error(tmp_path: Path) -> None:
    bad = tmp_path / "keys"
    bad.write_text("till nonsense\n")
    with pytest.raises(SettingsInvalid) as caught:
        check_fleet([
            host("a", api_keys_file=str(bad)),
            host("b", api_keys_file="no/such/file"),
            host("c", api_keys_file=str(tmp_path)),
            host("d", api_keys_file="~nobody-of-that-name/keys"),
            host("e"),
        ])  # fmt: skip
    first, *problems = str(caught.value).splitlines()
    assert first == "4 problems in 4 hosts; nothing was changed:"
    assert f"a: api_keys_file = {str(bad)!r}: {bad}, line 1: the second word" in problems[0]
    assert "run `edge key new NAME --file no/such/file`" in problems[1]
    assert "it cannot be read: Is a directory" in problems[2]
    assert "it cannot be read: " in problems[3]


def test_a_relative_path_counts_from_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"till {'a' * 64}\n")
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", str(tmp_path))
    up = "/".join([".."] * (len(CHECKOUT.parts) - 1))
    for told in (f"{up}{keys}", str(keys), "~/keys"):
        settings = check_fleet([host("a", api_keys_file=told, proxy_listen="::")])["a"]
        plan = plan_host("a", ["n100"], settings, survey_of("n100"), Cache(tmp_path / "cache"))
        assert not isinstance(plan, list)
        assert plan.proxy.keys == (ApiKey("till", "a" * 64),)


def test_a_file_that_went_bad_meanwhile_is_a_problem_of_the_host(tmp_path: Path) -> None:
    settings = Settings(api_keys_file=str(tmp_path / "gone"))
    plan = plan_host("a", ["n100"], settings, survey_of("n100"), Cache(tmp_path / "cache"))
    assert isinstance(plan, list)
    assert isinstance(plan[0], Problem)
    assert plan[0].key == "api_keys_file"


# --- origins -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin",
    ["https://shop.example", "http://192.0.2.5:3000", "http://[2001:db8::1]:8080",
     "http://localhost:5173", "https://xn--mnchen-3ya.example"],
)  # fmt: skip
def test_an_origin(origin: str) -> None:
    settings, problems = check_host("a", {"cors_origins": [origin]})
    assert problems == []
    assert settings is not None
    assert settings.cors_origins == (origin,)


@pytest.mark.parametrize(
    ("origin", "why"),
    [
        ("*", "name each origin by itself"),
        ("https://*.example", "name each origin by itself"),
        ("null", "is no origin"),
        ("shop.example", "is no origin"),
        ("ftp://shop.example", "is no origin"),
        ("https://", "is no origin"),
        ("https://a b", "is no origin"),
        ("http://a:99999", "is no origin"),
        ("http://[::1", "is no origin"),
        ("https://münchen.example", "is no origin"),
        ("https://shop.example/", "is not what a browser sends, which is 'https://shop.example'"),
        ("https://shop.example/x?y", "is not what a browser sends"),
        ("https://shop.example:443", "is not what a browser sends, which is 'https://shop.exa"),
        ("HTTPS://Shop.example", "is not what a browser sends, which is 'https://shop.example'"),
        ("https://me@shop.example", "is not what a browser sends"),
        ("https://shop.example\nX=1", "is no"),
        ("", "is no origin"),
    ],
)
def test_what_is_none(origin: str, why: str) -> None:
    _, problems = check_host("a", {"cors_origins": ["https://good.example", origin]})
    (problem,) = problems
    assert why in problem.what
    assert f"{origin!r}" in problem.what


def test_a_text_is_no_list() -> None:
    _, problems = check_host("a", {"cors_origins": "https://shop.example"})
    assert [problem.what for problem in problems] == ["allowed: a list of texts"]
