"""Settings from the environment: all problems at once, and never the key."""

import pytest
from chat_proxy.config import ConfigError, Settings


def test_defaults_and_values() -> None:
    assert Settings.from_env({}) == Settings()
    given = {
        "EDGE_PROXY_SLOTS": "2",
        "EDGE_PROXY_TEMPERATURE": "0.2",
        "EDGE_PROXY_ENGINE_URL": "http://127.0.0.1:9/",
        "EDGE_PROXY_SYSTEM_PROMPT": "",
        "OTHER": "x",
    }
    settings = Settings.from_env(given)
    assert (settings.slots, settings.temperature) == (2, 0.2)
    assert (settings.engine_url, settings.system_prompt) == ("http://127.0.0.1:9", "")


def test_all_problems_in_one_error() -> None:
    bad = {
        "SLOTS": "0",
        "PORT": "http",
        "TEMPERATURE": "nan",
        "TOTAL_TIMEOUT_S": "-1",
        "ENGINE_URL": "unix:/x",
        "LISTEN": "two words",
        "CORS_ORIGINS": "https://shop.example *",
        "SLOT": "1",
    }
    with pytest.raises(ConfigError) as caught:
        Settings.from_env({f"EDGE_PROXY_{name}": value for name, value in bad.items()})
    lines = str(caught.value).splitlines()
    assert len(lines) == len(bad)
    for name in bad:
        assert any(line.startswith(f"EDGE_PROXY_{name}") for line in lines), name


def test_an_answer_must_leave_room_for_the_question() -> None:
    with pytest.raises(ConfigError, match="MAX_TOKENS=2048 leaves no room"):
        Settings.from_env({"EDGE_PROXY_MAX_TOKENS": "2048"})


def test_the_engine_s_key_shows_nowhere() -> None:
    settings = Settings.from_env({"LLAMA_API_KEY": "sesame"})
    assert settings.engine_key == "sesame"
    assert "sesame" not in repr(settings)
    for broken in ("", "open sesame", "sesame\n", "sésame"):
        with pytest.raises(ConfigError) as caught:
            Settings.from_env({"LLAMA_API_KEY": broken})
        assert "same" not in str(caught.value)


def test_origins_are_named_one_by_one() -> None:
    given = {"EDGE_PROXY_CORS_ORIGINS": "https://shop.example http://10.0.0.7:3000"}
    assert Settings.from_env(given).cors_origins == ("https://shop.example", "http://10.0.0.7:3000")
    given = {"EDGE_PROXY_CORS_ORIGINS": "http://[::1]:8080"}
    assert Settings.from_env(given).cors_origins == ("http://[::1]:8080",)
    for broken in (
        "*",
        "shop.example",
        "https://shop.example/",
        "https://",
        "null",
        "https://Shop.example",
        "https://shop.example:443",
        "http://shop.example:80",
        "http://shop.example:99999",
        "https://*",
        "https://*.shop.example",
        "https://me@shop.example",
    ):
        with pytest.raises(ConfigError, match="must be origins"):
            Settings.from_env({"EDGE_PROXY_CORS_ORIGINS": broken})
