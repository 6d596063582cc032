"""HostPlan -> the files that a host gets. Pure: the same plan always gives the same bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from edge.agent import agent_program
from edge.plan import ENGINE_HOST, ETC, ROOT, HostPlan
from edge.rivals import ORDERED
from edge.survey import FileState

CHECKOUT = Path(__file__).resolve().parent.parent
FILES = CHECKOUT / "files"
HEADER = "Written by edge-llm; local changes are overwritten by the next rollout."
UNITS = "/etc/systemd/system"
AGENT = f"{ROOT}/bin/edge-host"
API_KEYS = f"{ETC}/api-keys"
ENGINE_ENV = f"{ETC}/engine.env"
"""The engine's own key: made on the host by its agent, known to nobody else."""
JOURNALD_DROP_IN = "/etc/systemd/journald.conf.d/50-edge-llm.conf"
WATCHDOG_DROP_IN = "/etc/systemd/system.conf.d/99-edge-llm.conf"
KEEP_RELEASES = 2
ENABLED_UNITS = ("llama-server.service", "chat-proxy.socket", "chat-proxy.service")


@dataclass(frozen=True)
class ManagedFile:
    """A file as it should be on a host."""

    path: str
    content: bytes
    mode: str = "644"
    owner: str = "root:root"

    @property
    def state(self) -> FileState:
        """What a survey finds once the file is in place."""
        return FileState(hashlib.sha256(self.content).hexdigest(), self.mode, self.owner)


@dataclass(frozen=True)
class Rendered:
    """All managed files of one host, by the step that writes them."""

    tuning: tuple[ManagedFile, ...]
    services: tuple[ManagedFile, ...]
    agent: ManagedFile
    digests: Mapping[str, str]
    """Service to the digest of all that its process depends on."""

    @property
    def all(self) -> tuple[ManagedFile, ...]:
        """Every managed file."""
        return (*self.tuning, self.agent, *self.services)


def differing(
    files: Iterable[ManagedFile], found: Mapping[str, FileState]
) -> tuple[ManagedFile, ...]:
    """The files that are not on the host, or not as they should be."""
    return tuple(file for file in files if found.get(file.path) != file.state)


def render(plan: HostPlan) -> Rendered:
    """Render every file for a host."""
    proxy_env = ManagedFile(
        f"{ETC}/proxy.env", _template("proxy.env.j2", plan), "640", "root:edge-llm"
    )
    # A service's digest covers its unit, its environment and the releases and model behind its
    # paths. It is part of the unit, so it is worked out with the digest left empty.
    engine_digest = _digest(
        _template("llama-server.service.j2", plan, digest=""), plan.engine.release_id.encode()
    )
    proxy_digest = _digest(
        _template("chat-proxy.service.j2", plan, digest=""),
        proxy_env.content,
        plan.proxy.release_id.encode(),
    )
    return Rendered(
        tuning=_tuning_files(plan),
        services=(
            ManagedFile(f"{UNITS}/edgellm.slice", _template("edgellm.slice.j2", plan)),
            ManagedFile(
                f"{UNITS}/llama-server.service",
                _template("llama-server.service.j2", plan, digest=engine_digest),
            ),
            ManagedFile(f"{UNITS}/chat-proxy.socket", _template("chat-proxy.socket.j2", plan)),
            ManagedFile(
                f"{UNITS}/chat-proxy.service",
                _template("chat-proxy.service.j2", plan, digest=proxy_digest),
            ),
            proxy_env,
            *_key_files(plan),
        ),
        agent=ManagedFile(AGENT, agent_program(), "755"),
        digests={"llama-server": engine_digest, "chat-proxy": proxy_digest},
    )


def _key_files(plan: HostPlan) -> tuple[ManagedFile, ...]:
    """The proxy reads it again when it changes, so it is no part of a digest."""
    if plan.proxy.keys is None:
        return ()
    content = json.dumps({"keys": [asdict(key) for key in plan.proxy.keys]}, indent=1) + "\n"
    return (ManagedFile(API_KEYS, content.encode(), "640", "root:edge-llm"),)


def _tuning_files(plan: HostPlan) -> tuple[ManagedFile, ...]:
    files = [
        ManagedFile(f"{ROOT}/bin/edge-tuning", (FILES / "edge-tuning").read_bytes(), "755"),
        ManagedFile(f"{ETC}/tuning.conf", _template("tuning.conf.j2", plan)),
        ManagedFile(
            f"{UNITS}/edge-llm-tuning.service", _template("edge-llm-tuning.service.j2", plan)
        ),
        ManagedFile(f"{UNITS}/edge-llm-tuning.timer", _template("edge-llm-tuning.timer.j2", plan)),
        ManagedFile(JOURNALD_DROP_IN, _template("journald.conf.j2", plan)),
    ]
    if plan.tuning.watchdog_s:
        files.append(ManagedFile(WATCHDOG_DROP_IN, _template("watchdog.conf.j2", plan)))
    return tuple(files)


def desired_state(plan: HostPlan, rendered: Rendered) -> dict[str, Any]:
    """What the agent on the host is told to make live (its format 1)."""
    # What is left to do on the host is no part of what it should be.
    lasting = {**asdict(plan), "boot": [plan.boot.loader, plan.boot.tokens]}
    return {
        "format": 1,
        "plan_digest": _digest(json.dumps(lasting, sort_keys=True).encode()),
        "releases": {"engine": plan.engine.release_id, "proxy": plan.proxy.release_id},
        "model": {
            "path": plan.model.path,
            "sha256": plan.model.sha256,
            "name": plan.model.name,
        },
        "digests": dict(rendered.digests),
        "files": [file.path for file in rendered.services],
        # Where the host goes back, a key that was revoked meanwhile must not come back with it.
        "newest": [API_KEYS],
        "enable": list(ENABLED_UNITS),
        "engine_url": f"http://{ENGINE_HOST}:{plan.engine.port}",
        "proxy_url": f"http://{_reach(plan.proxy.listen)}:{plan.proxy.port}",
        "slots": plan.engine.slots,
        "gate_timeout_s": plan.gate_timeout_s,
        "keep_releases": KEEP_RELEASES,
    }


def _reach(listen: str) -> str:
    """An address at which the host itself reaches a listener on `listen`."""
    address = ip_address(listen)
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return listen if address.version == 4 else f"[{listen}]"


def _template(name: str, plan: HostPlan, **more: Any) -> bytes:
    listen = plan.proxy.listen
    host = f"[{listen}]" if ":" in listen else listen
    text = (
        _environment()
        .get_template(name)
        .render(
            plan=plan,
            header=HEADER,
            root=ROOT,
            etc=ETC,
            engine_env=ENGINE_ENV,
            api_keys=API_KEYS,
            ordered=ORDERED,
            listen=f"{host}:{plan.proxy.port}",
            **more,
        )
    )
    return text.encode()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(CHECKOUT / "templates"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  units and shell, not HTML
    )
    environment.filters["env"] = _environment_value
    environment.filters["unit"] = _unit_value
    environment.filters["arg"] = _exec_argument
    return environment


def _environment_value(value: str) -> str:
    """Quote a value for systemd's EnvironmentFile=: double quotes, C-like escapes."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return '"' + escaped.replace("`", "\\`") + '"'


def _unit_value(value: str) -> str:
    """Free text in a unit file: one line, and no specifiers."""
    return " ".join(value.split()).replace("%", "%%")


def _exec_argument(value: str) -> str:
    """One argument of ExecStart=: neither split, nor a specifier, nor a variable."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + escaped.replace("%", "%%").replace("$", "$$") + '"'


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]
