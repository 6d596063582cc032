"""What an operator asks for: every setting, declared once.

A setting has a type, a default, a unit, a meaning and, where it is a number, bounds. The reference
in docs/settings.md is generated from this file, and pyinfra's host data is checked against it
before any host is touched.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from edge.artifacts.sources import SourceError, parse_source

HARDWARE_GROUPS = ("n100", "ryzen", "pi5")
"""Inventory groups that name a class of hardware."""

QWEN_REVISION = "9217f5db79a29953eb74d5343926648285ec7e67"
QWEN_SOURCE = (
    f"hub:Qwen/Qwen2.5-0.5B-Instruct-GGUF@{QWEN_REVISION}/qwen2.5-0.5b-instruct-q4_k_m.gguf"
)
QWEN_SHA256 = "74a4da8c9fdbcd15bd1f6d01d621410d31c6fc00986f5eb687824e7b93d7a9db"

MAX_PROMPT = 16_384
"""Characters of `system_prompt`; more is beyond the context of most slots."""

SHORTEST_WATCHDOG_S = 10
"""A stall of seconds, as SD cards have them, must not restart a host."""

Auto = Literal["auto"]


def _setting(default: Any, meaning: str, unit: str = "", **bounds: Any) -> Any:
    return Field(default=default, description=meaning, json_schema_extra={"unit": unit}, **bounds)


class Settings(BaseModel):
    """The settings of one host. Immutable; unknown keys are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    # Model
    model_source: str = _setting(
        QWEN_SOURCE,
        "Where the controller takes the GGUF file from: `hub:OWNER/REPO@REVISION/FILE`, "
        "`https://…` or `file:///…`.",
    )
    model_sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = _setting(
        QWEN_SHA256,
        "SHA-256 of the GGUF file. Checked before the file replaces anything. May be empty for a "
        "`file://` source only.",
    )
    model_name: str = _setting(
        "", "Name that clients see in /v1/models. Empty: the file's name without `.gguf`."
    )
    hub_endpoint: str = _setting(
        "", "Base URL of the model hub or of a mirror of it. Empty: the hub client's own default."
    )

    # Engine
    engine_source: Literal["auto", "release", "build"] = _setting(
        "auto",
        "`release`: the official llama.cpp tarball; `build`: built once on the controller; `auto`: "
        "the release where it runs, else the build.",
    )
    engine_release_base_url: str = _setting(
        "",
        "Base URL of a mirror of llama.cpp's release downloads. Empty: the project's own releases.",
    )
    threads: Auto | Annotated[int, Field(ge=1, le=256)] = _setting(
        "auto", "Engine threads. `auto`: one a physical core, less `system_cores`.", "threads"
    )
    system_cores: Annotated[int, Field(ge=0, le=64)] = _setting(
        1, "Physical cores that stay with the operating system and the proxy.", "cores"
    )
    slots: Auto | Annotated[int, Field(ge=1, le=64)] = _setting(
        "auto", "Generations that run at once. `auto`: by hardware class and memory.", "generations"
    )
    context_per_slot: Annotated[int, Field(ge=256, le=1_048_576)] = _setting(
        2048, "Context of one conversation: prompt, history and answer.", "tokens"
    )
    cache_ram_mib: Auto | Annotated[int, Field(ge=0, le=65_536)] = _setting(
        "auto",
        "Memory for the engine's cache of earlier prompts (its own default is 8 GiB). `auto`: by "
        "hardware class.",
        "MiB",
    )
    batch_size: Annotated[int, Field(ge=32, le=8192)] = _setting(
        512, "Prompt tokens that one pass may take.", "tokens"
    )
    ubatch_size: Annotated[int, Field(ge=32, le=8192)] = _setting(
        128, "Prompt tokens computed together; sets the size of the compute buffers.", "tokens"
    )
    flash_attention: Literal["auto", "on", "off"] = _setting("auto", "Flash attention.")
    engine_port: Annotated[int, Field(ge=1024, le=65_535)] = _setting(
        8080, "Port of the engine, on 127.0.0.1 only.", "port"
    )

    # Limits
    cpu_share_percent: Annotated[int, Field(ge=1, le=100)] = _setting(
        75,
        "Share of the engine's own cores that it may use. 75 with three threads is CPUQuota=225%.",
        "% of the chosen cores",
    )
    cpu_weight: Annotated[int, Field(ge=1, le=10_000)] = _setting(
        80, "CPU weight of the whole service against the rest of the system (default there: 100)."
    )
    io_weight: Annotated[int, Field(ge=1, le=10_000)] = _setting(
        50, "I/O weight of the whole service against the rest of the system (default there: 100)."
    )
    memory_max_mib: Auto | Annotated[int, Field(ge=64, le=1_048_576)] = _setting(
        "auto",
        "Memory limit of the engine. `auto`: 1144 MiB (1.2 GB), or more where the model needs it.",
        "MiB",
    )

    # Proxy
    proxy_listen: str = _setting(
        "127.0.0.1", "Address that the chat proxy listens on; `0.0.0.0` serves the network."
    )
    proxy_port: Annotated[int, Field(ge=1, le=65_535)] = _setting(
        8000, "Port of the chat proxy.", "port"
    )
    api_keys_file: str = _setting(
        "",
        "File with the keys that may ask, on the controller: `edge key new` writes it. A relative "
        "path counts from the checkout (the folder of deploy.py). Needed where `proxy_listen` "
        "serves a network; empty: no keys are asked for.",
    )
    cors_origins: Annotated[tuple[str, ...], Field(strict=False)] = _setting(
        (),
        "Sites whose pages may ask from a browser, as `https://shop.example` or "
        "`http://192.0.2.5:3000`. The proxy's own page needs none.",
    )
    temperature: Annotated[float, Field(ge=0, le=2, strict=False)] = _setting(
        0.7, "Sampling temperature where a request names none."
    )
    max_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = _setting(
        512, "Longest answer where a request names no length.", "tokens"
    )
    system_prompt: str = _setting("", "System message where a request brings none.")
    queue_limit: Annotated[int, Field(ge=0, le=10_000)] = _setting(
        32, "Requests that may wait for a slot; more are told to come back later.", "requests"
    )

    # Operating system
    governor: Literal["performance", "keep"] = _setting(
        "performance",
        "CPU frequency governor; with it energy preference, energy bias and platform profile where "
        "there are any. `keep`: leave them as the host has them, or had them before.",
    )
    max_cstate: Literal["keep"] | Annotated[int, Field(ge=1, le=9)] = _setting(
        1,
        "Deepest CPU idle state that stays allowed, as the kernel numbers them (state0 polls on "
        "x86). `keep`: no bound of this kind; what was disabled before is allowed again.",
        "C-state",
    )
    max_exit_latency_us: Literal["any"] | Annotated[int, Field(ge=1, le=100_000)] = _setting(
        "any",
        "Longest time that an allowed CPU idle state may take to wake up. Holds beside "
        "`max_cstate`. The shallowest state that halts a CPU stays in any case.",
        "µs",
    )
    take_over_power_daemons: bool = _setting(
        False,
        "Stop a power daemon (power-profiles-daemon, tuned, tlp and the like) that would set the "
        "governor back. Otherwise it is only reported. Set to False again, the daemon comes back.",
    )
    transparent_huge_pages: Literal["keep", "madvise", "always"] = _setting(
        "keep",
        "Memory in pages of 2 MiB. `madvise`: for programs that ask, and the engine is made to; "
        "`always`: for all. Fewer TLB misses for repacked weights and the KV cache, but memory is "
        "taken in larger pieces, and a model file that is mapped gets none. Measure before you "
        "keep it.",
    )
    zram_swap_percent: Annotated[int, Field(ge=0, le=200)] = _setting(
        0,
        "Compressed swap in memory, in percent of the memory; 0: none. Gives the rest of the "
        "system room before the kernel kills; the engine itself never swaps. Costs CPU time when "
        "it is used. Where a host has zram already, that stays.",
        "% of memory",
    )
    hardware_watchdog_s: Annotated[int, Field(ge=0, le=600)] = _setting(
        0,
        "The hardware restarts a host whose systemd has not run for so long; 0: never. For devices "
        "that nobody can reach. A Raspberry Pi takes 15 at most. A host that is merely slow (an SD "
        "card that stalls) is restarted, too.",
        "s",
    )
    noatime: bool = _setting(
        False,
        "Do not write down when files were last read, on the file systems that edge-llm uses: "
        "saves writes of SD cards. Some mail and backup programs need these times.",
    )
    journal_max_mib: Annotated[int, Field(ge=8, le=16_384)] = _setting(
        64, "Upper bound of the system journal on disk (SD cards wear out).", "MiB"
    )

    # Rollout
    gate_timeout_s: Annotated[int, Field(ge=5, le=3600)] = _setting(
        180, "Longest wait for the engine to load and to stream its first answer.", "s"
    )
    reboot: Literal["never", "if_needed"] = _setting(
        "never",
        "`if_needed`: when a host serves and its kernel runs without a parameter that was asked "
        "for, the rollout reboots it and waits until it serves again; one host of the fleet at a "
        "time. `never`: what waits for the next boot is only said.",
    )
    reboot_timeout_s: Annotated[int, Field(ge=5, le=3600)] = _setting(
        300,
        "Longest wait for SSH after a reboot: answers that are being given may take 30 s to end, "
        "a shutdown and a boot a minute or two, a check of the disk more.",
        "s",
    )

    @field_validator("hardware_watchdog_s")
    @classmethod
    def _watchdog_has_patience(cls, value: int) -> int:
        if 0 < value < SHORTEST_WATCHDOG_S:
            raise ValueError(
                f"is too short: a busy host would be restarted; allowed are 0 (never) and "
                f"{SHORTEST_WATCHDOG_S} to 600"
            )
        return value

    @field_validator("model_source")
    @classmethod
    def _source_is_known(cls, value: str) -> str:
        try:
            parse_source(value)
        except SourceError as error:
            # A Problem names the key and the value already.
            raise ValueError(str(error).removeprefix(f"model_source {value!r}: ")) from None
        return value

    @field_validator("proxy_listen")
    @classmethod
    def _listen_is_an_address(cls, value: str) -> str:
        try:
            ip_address(value)
        except ValueError:
            raise ValueError(
                "is not an IP address; 127.0.0.1 serves this host only, 0.0.0.0 the network"
            ) from None
        return value

    @field_validator("api_keys_file")
    @classmethod
    def _path_is_a_line(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("holds characters that no path of a file should have")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _origins_are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if problem := _origin_problem(origin):
                raise ValueError(f"{origin!r} {problem}")
        return value

    @field_validator("model_name")
    @classmethod
    def _name_is_a_word(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9._:/@+-]{0,128}", value):
            # The engine takes a comma for the end of the name; clients put it into URLs and logs.
            raise ValueError("must be one word of letters, digits and . _ : / @ + -")
        return value

    @field_validator("system_prompt")
    @classmethod
    def _prompt_is_text(cls, value: str) -> str:
        # systemd drops a variable with one of them, and says so in the journal only.
        bad = sorted({char for char in value if _is_no_text(char)} - {"\n", "\t"})
        if bad:
            raise ValueError(
                "holds control characters, or others that are no text "
                f"({', '.join(map(repr, bad))}); allowed are newline and tab"
            )
        if len(value) > MAX_PROMPT:
            raise ValueError(f"has {len(value)} characters; allowed are {MAX_PROMPT} at most")
        return value

    @field_validator("hub_endpoint", "engine_release_base_url")
    @classmethod
    def _base_url(cls, value: str) -> str:
        if value and not value.startswith(("http://", "https://", "file://")):
            raise ValueError("must be empty or begin with https://, http:// or file://")
        return value


def _origin_problem(origin: str) -> str:
    """Why this is no origin as a browser sends it; "" if it is."""
    form = "is no origin: scheme://host or scheme://host:port, as https://shop.example"
    if "*" in origin:
        return "would let pages of other sites ask too: name each origin by itself"
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return form
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not re.fullmatch(r"[a-z0-9.-]+|[0-9a-f:.]+", host):
        return form
    default = {"http": 80, "https": 443}[parts.scheme]
    sent = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}"
    sent += f":{port}" if port not in (None, default) else ""
    return "" if origin == sent else f"is not what a browser sends, which is {sent!r}"


def _is_no_text(char: str) -> bool:
    """A control character, half of a surrogate pair, or one of Unicode's noncharacters."""
    number = ord(char)
    noncharacter = number & 0xFFFE == 0xFFFE or 0xFDD0 <= number <= 0xFDEF
    return noncharacter or unicodedata.category(char) in ("Cc", "Cs")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with one setting of one host."""

    host: str
    key: str
    value: Any
    what: str

    def __str__(self) -> str:
        return f"{self.host}: {self.key} = {self.value!r}: {self.what}"


# What pyinfra's connectors read from the same host data (tests compare this with pyinfra's tables).
CONNECTOR_KEYS = frozenset(
    {
        "ssh_hostname", "ssh_port", "ssh_user", "ssh_password", "ssh_key", "ssh_key_password",
        "ssh_allow_agent", "ssh_look_for_keys", "ssh_forward_agent", "ssh_config_file",
        "ssh_known_hosts_file", "ssh_strict_host_key_checking", "ssh_paramiko_connect_kwargs",
        "ssh_connect_retries", "ssh_connect_retry_min_delay", "ssh_connect_retry_max_delay",
        "ssh_file_transfer_protocol", "fake_responses", "fake_delay", "fake_delay_jitter",
    }
)  # fmt: skip


def check_host(host: str, data: Mapping[str, Any]) -> tuple[Settings | None, list[Problem]]:
    """Check one host's data.

    Keys of the connector and pyinfra's global arguments (`_sudo` and the like) are not settings
    and are passed over.

    Returns:
        The settings, or None with the problems.
    """
    asked = {k: v for k, v in data.items() if not k.startswith("_") and k not in CONNECTOR_KEYS}
    problems: list[Problem] = []
    for key in sorted(set(asked) - set(Settings.model_fields)):
        problems.append(Problem(host, key, asked.pop(key), _unknown(key)))
    try:
        settings = Settings(**asked)
    except ValidationError as error:
        seen: set[str] = set()
        for detail in error.errors():
            key = str(detail["loc"][0])
            if key not in seen:
                seen.add(key)
                problems.append(Problem(host, key, asked[key], _explain(key, detail)))
        return None, problems
    problems += _together(host, settings)
    return (None if problems else settings), problems


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key, [*Settings.model_fields, *CONNECTOR_KEYS], n=1)
    if near:
        return f"no such setting; did you mean {near[0]}?"
    return "no such setting; docs/settings.md lists them all (a helper's name begins with _)"


def _explain(key: str, detail: Any) -> str:
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "value_error":
        return message
    return f"allowed: {allowed(key)}"


def allowed(key: str) -> str:
    """What a setting may be, as a phrase for messages and for the reference."""
    schema = Settings.model_json_schema()["properties"][key]
    return " or ".join(_phrase(part) for part in schema.get("anyOf", [schema]))


def _phrase(schema: Mapping[str, Any]) -> str:
    if "const" in schema:
        return f'"{schema["const"]}"'
    if "enum" in schema:
        return ", ".join(f'"{value}"' for value in schema["enum"])
    if schema.get("type") == "array":
        return "a list of texts"
    if "pattern" in schema:
        return "64 hexadecimal digits in lower case, or empty"
    words = {"integer": "a whole number", "number": "a number", "boolean": "True or False",
             "string": "text"}  # fmt: skip
    phrase = words[schema["type"]]
    if "minimum" in schema:
        phrase += f" from {schema['minimum']} to {schema['maximum']}"
    return phrase


def _together(host: str, settings: Settings) -> Iterable[Problem]:
    """Problems that only several settings together have, without knowing the host."""
    source = parse_source(settings.model_source)
    if not settings.model_sha256 and source.kind != "file":
        yield Problem(
            host, "model_sha256", "", "may be empty only where model_source is a file:// address"
        )
    if settings.model_source != QWEN_SOURCE and settings.model_sha256 == QWEN_SHA256:
        yield Problem(
            host,
            "model_sha256",
            settings.model_sha256,
            "is the default model's, but model_source names another file; set both",
        )
    if settings.ubatch_size > settings.batch_size:
        yield Problem(
            host,
            "ubatch_size",
            settings.ubatch_size,
            f"must not be larger than batch_size ({settings.batch_size})",
        )
    if settings.max_tokens >= settings.context_per_slot:
        yield Problem(
            host,
            "max_tokens",
            settings.max_tokens,
            f"leaves no room for a prompt in context_per_slot ({settings.context_per_slot})",
        )
    if settings.engine_port == settings.proxy_port:
        yield Problem(
            host, "engine_port", settings.engine_port, "is the proxy's port as well (proxy_port)"
        )
