"""The systems that are compared: how each is had, started and asked."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from bench.proxy.processes import CHECKOUT
from edge.artifacts.cache import default_cache_root

_HERE = Path(__file__).resolve().parent
OPENAI = "/v1/chat/completions"


class Unavailable(Exception):  # noqa: N818  (says what happened)
    """A system cannot be had on this machine; the reason is the text."""


@dataclass(frozen=True)
class Ports:
    """Where a system listens, and where its engine does."""

    own: int
    engine: int


@dataclass(frozen=True)
class System:
    """One thing that clients may ask."""

    name: str
    path: str
    """The endpoint that is asked."""
    command: Callable[[Ports, Path], list[str]] | None
    """What starts it; may write files into the folder. None: the engine itself is asked."""
    env: Callable[[Ports], Mapping[str, str]] = lambda _: {}
    folder: Path = CHECKOUT
    prepare: Callable[[], str] = lambda: "-"
    """Have it installed; gives its version, or raises Unavailable."""
    start_s: float = 20.0
    """How long it may take until it serves."""


def _python_packages(*names: str) -> Callable[[], str]:
    return lambda: ", ".join(f"{one} {importlib.metadata.version(one)}" for one in names)


def _filled(template: str, ports: Ports, folder: Path) -> str:
    """A configuration file with the ports filled in; its path."""
    target = folder / template
    text = Template((_HERE / template).read_text())
    target.write_text(text.substitute(port=ports.own, engine_port=ports.engine))
    return str(target)


def _edge_env(ports: Ports) -> dict[str, str]:
    return {
        "EDGE_PROXY_ENGINE_URL": f"http://127.0.0.1:{ports.engine}",
        "EDGE_PROXY_PORT": str(ports.own),
        "EDGE_PROXY_SLOTS": "256",  # more than there are streams: the relay, not the queue
    }


def _prepare_haproxy() -> str:
    done = subprocess.run(
        [CHECKOUT / "scripts" / "haproxy"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Unavailable(f"scripts/haproxy: {done.stderr.strip()[-300:]}")
    said = subprocess.run(["haproxy", "-v"], capture_output=True, text=True, check=True).stdout
    return " ".join(said.split()[:3])


def litellm_folder() -> Path:
    """Its virtual environment; complete if `.ready` is in it."""
    lock = (_HERE / "litellm.lock").read_bytes()
    return default_cache_root() / "bench" / f"litellm-{hashlib.sha256(lock).hexdigest()[:16]}"


def _prepare_litellm() -> str:
    """A virtual environment by the lock, in the project's cache."""
    folder = litellm_folder()
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if not ready.exists():
        print(f"installing LiteLLM into {folder} (about 30 s) ...", file=sys.stderr)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        locked = ["--require-hashes", "--only-binary", ":all:", "-r", str(_HERE / "litellm.lock")]
        steps = ([sys.executable, "-m", "venv", "--clear", str(folder)], [*pip, *locked])
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Unavailable(f"its installation failed: {done.stderr.strip()[-300:]}")
        ready.touch()
    code = "import importlib.metadata as m; print('litellm', m.version('litellm'))"
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def _litellm_command(ports: Ports, folder: Path) -> list[str]:
    return [
        str(litellm_folder() / "bin" / "litellm"),
        *("--config", _filled("litellm.yaml", ports, folder)),
        *("--host", "127.0.0.1", "--port", str(ports.own)),
        *("--num_workers", "1", "--telemetry", "False"),
    ]


_LITELLM_ENV = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "DISABLE_ADMIN_UI": "True",
    "NO_DOCS": "True",
    # no keys, as with the other systems, on loopback
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    # what it would otherwise ask the internet for at its start
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_LOCAL_POLICY_TEMPLATES": "True",
    "LITELLM_LOCAL_AUTOROUTER_PRESETS": "True",
}


def _edge(name: str, path: str) -> System:
    return System(
        name,
        path,
        command=lambda *_: [sys.executable, "-m", "chat_proxy"],
        env=_edge_env,
        folder=CHECKOUT / "files",
        prepare=_python_packages("fastapi", "uvicorn", "httptools"),
    )


SYSTEMS = {
    one.name: one
    for one in (
        System("direct", OPENAI, command=None),
        System(
            "haproxy",
            OPENAI,
            command=lambda ports, folder: [
                "haproxy",
                "-db",
                "-f",
                _filled("haproxy.cfg", ports, folder),
            ],
            prepare=_prepare_haproxy,
        ),
        _edge("edge", "/chat"),
        _edge("edge-v1", OPENAI),
        System(
            "litellm",
            OPENAI,
            command=_litellm_command,
            env=lambda _: _LITELLM_ENV,
            prepare=_prepare_litellm,
            start_s=120.0,
        ),
        System(
            "recipe",
            "/chat",
            command=lambda ports, _: [
                *(sys.executable, "-m", "bench.proxy.recipe"),
                *("--port", str(ports.own)),
            ],
            env=lambda ports: {"ENGINE_URL": f"http://127.0.0.1:{ports.engine}"},
            prepare=_python_packages("fastapi", "uvicorn", "requests"),
        ),
    )
}


def environment(system: System, ports: Ports, folder: Path) -> dict[str, str]:
    """All variables that the system is started with: nothing else of ours reaches it."""
    path = os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    return {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8", **system.env(ports)}
