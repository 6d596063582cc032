"""Settings: each kind of bad value is refused with a message that a newcomer can act on."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from pyinfra.connectors.fake import FakeConnector
from pyinfra.connectors.ssh import SSHConnector

from edge.settings import CONNECTOR_KEYS, QWEN_SHA256, Settings, allowed, check_host


def problem(**data: Any) -> str:
    settings, problems = check_host("kiosk", data)
    assert settings is None
    assert len(problems) == 1, problems
    return str(problems[0])


def test_defaults_are_valid() -> None:
    settings, problems = check_host("kiosk", {})
    assert settings == Settings()
    assert problems == []


def test_every_default_obeys_its_own_bounds() -> None:
    assert Settings(**Settings().model_dump()) == Settings()


def test_login_and_global_arguments_are_not_settings() -> None:
    data = {"ssh_hostname": "192.0.2.1", "ssh_key": "k", "_sudo": True, "_helper": 1, "slots": 2}
    settings, problems = check_host("kiosk", data)
    assert problems == []
    assert settings is not None
    assert settings.slots == 2


def test_connector_keys_are_pyinfras() -> None:
    assert {*SSHConnector.data_meta, *FakeConnector.data_meta} == CONNECTOR_KEYS


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("thread", "threads"),
        ("context", "context_per_slot"),
        ("cpu_share", "cpu_share_percent"),
        ("ssh_hostnam", "ssh_hostname"),
        ("proxy_prot", "proxy_port"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_key(typo: str, meant: str) -> None:
    assert problem(**{typo: 3}) == f"kiosk: {typo} = 3: no such setting; did you mean {meant}?"


def test_an_unknown_key_points_to_the_reference() -> None:
    assert problem(zzz=1) == (
        "kiosk: zzz = 1: no such setting; docs/settings.md lists them all (a helper's name begins "
        "with _)"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"threads": "3"}, "threads = '3': allowed: \"auto\" or a whole number from 1 to 256"),
        ({"threads": 0}, 'threads = 0: allowed: "auto" or a whole number from 1 to 256'),
        ({"threads": True}, 'threads = True: allowed: "auto" or a whole number from 1 to 256'),
        (
            {"engine_source": "debian"},
            'engine_source = \'debian\': allowed: "auto", "release", "build"',
        ),
        (
            {"cpu_share_percent": 101},
            "cpu_share_percent = 101: allowed: a whole number from 1 to 100",
        ),
        (
            {"cpu_share_percent": 7.5},
            "cpu_share_percent = 7.5: allowed: a whole number from 1 to 100",
        ),
        (
            {"temperature": 3},
            "temperature = 3: allowed: a number from 0 to 2",
        ),
        ({"temperature": "hot"}, "temperature = 'hot': allowed: a number from 0 to 2"),
        (
            {"take_over_power_daemons": "yes"},
            "take_over_power_daemons = 'yes': allowed: True or False",
        ),
        ({"system_prompt": None}, "system_prompt = None: allowed: text"),
        ({"system_prompt": ["a"]}, "system_prompt = ['a']: allowed: text"),
        (
            {"max_cstate": 0},
            'max_cstate = 0: allowed: "keep" or a whole number from 1 to 9',
        ),
        ({"governor": "turbo"}, 'governor = \'turbo\': allowed: "performance", "keep"'),
        (
            {"model_sha256": QWEN_SHA256.upper()},
            f"model_sha256 = '{QWEN_SHA256.upper()}': allowed: 64 hexadecimal digits in lower "
            "case, or empty",
        ),
        (
            {"proxy_listen": "localhost"},
            "proxy_listen = 'localhost': is not an IP address; 127.0.0.1 serves this host only, "
            "0.0.0.0 the network",
        ),
        (
            {"hub_endpoint": "hub.example.org"},
            "hub_endpoint = 'hub.example.org': must be empty or begin with https://, http:// or "
            "file://",
        ),
    ],
)
def test_a_bad_value(data: dict[str, Any], message: str) -> None:
    assert problem(**data) == f"kiosk: {message}"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("qwen.gguf", "it does not say where the file comes from"),
        ("", "it is empty"),
        ("/srv/m.gguf", "a path is written as an address: file:///srv/m.gguf"),
        ("hub:Qwen/Q/x.gguf", "the revision is missing"),
        ("ftp://example.org/m.gguf", "ftp: is not a kind of source"),
    ],
)
def test_a_bad_model_source_says_what_is_allowed(source: str, why: str) -> None:
    message = problem(model_source=source)
    assert message.startswith(f"kiosk: model_source = {source!r}: {why}")
    assert "allowed are hub:OWNER/REPO@REVISION/FILE.gguf" in message
    assert message.count("model_source") == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"model_source": "https://example.org/m.gguf", "model_sha256": ""},
            "model_sha256 = '': may be empty only where model_source is a file:// address",
        ),
        (
            {"model_source": "file:///srv/m.gguf"},
            f"model_sha256 = '{QWEN_SHA256}': is the default model's, but model_source names "
            "another file; set both",
        ),
        (
            {"ubatch_size": 1024},
            "ubatch_size = 1024: must not be larger than batch_size (512)",
        ),
        (
            {"context_per_slot": 512},
            "max_tokens = 512: leaves no room for a prompt in context_per_slot (512)",
        ),
        (
            {"engine_port": 8000},
            "engine_port = 8000: is the proxy's port as well (proxy_port)",
        ),
    ],
)
def test_values_that_do_not_go_together(data: dict[str, Any], message: str) -> None:
    assert problem(**data) == f"kiosk: {message}"


def test_all_problems_of_a_host_are_found_at_once() -> None:
    data = {"thread": 1, "slots": 0, "governor": "x", "batch_size": "big"}
    settings, problems = check_host("kiosk", data)
    assert settings is None
    assert [p.key for p in problems] == ["thread", "slots", "batch_size", "governor"] or {
        p.key for p in problems
    } == set(data)


def test_a_local_model_needs_no_digest() -> None:
    settings, _ = check_host("kiosk", {"model_source": "file:///srv/m.gguf", "model_sha256": ""})
    assert settings is not None


def test_settings_cannot_be_changed_later() -> None:
    with pytest.raises(ValidationError):
        Settings().slots = 3  # type: ignore[misc]


def test_what_is_allowed_can_be_said_of_every_setting() -> None:
    for key in Settings.model_fields:
        assert allowed(key)
