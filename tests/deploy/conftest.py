"""A controller's cache with stand-ins of the three artifacts, and settings that use them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter, LlamaFileType

from edge.artifacts import Artifact, Cache, candidates, proxy_release_id
from edge.plan import HostPlan
from edge.planning import PROXY_LOCK, PROXY_SOURCE
from edge.render import Rendered
from edge.settings import Settings
from edge.solver import host_python
from tests.deploy.device import DEVICES, Device, converged, plan_of
from tests.deploy.rollout import FakeHost, Run, roll_out


def write_model(path: Path) -> str:
    """A tiny model that the real reader takes; gives its sha256."""
    writer = GGUFWriter(path, "qwen2")
    writer.add_name("Tiny Test")
    writer.add_block_count(3)
    writer.add_context_length(4096)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_token_list([f"token{n}" for n in range(300)])
    writer.add_token_types([1] * 300)
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("token_embd.weight", np.ones((8, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _adopt(cache: Cache, kind: str, key: str, release_id: str) -> None:
    content = f"stand-in for {key}".encode()
    sha256 = hashlib.sha256(content).hexdigest()
    loose = cache.work("tests") / key
    loose.write_bytes(content)
    path = cache.add(loose, sha256)
    cache.record(kind, key, Artifact(path, sha256, len(content), release_id))


@pytest.fixture(scope="session")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
    """A cache that holds an engine and a proxy for every device; $EDGE_LLM_CACHE names it."""
    cache = Cache(tmp_path_factory.mktemp("cache"))
    for arch in ("x86_64", "aarch64"):
        pin = candidates("build", arch)[0]
        _adopt(cache, "engines", f"{pin.release_id}-{arch}", pin.release_id)
    for device in DEVICES.values():
        python, arch = host_python(device.survey), device.survey.arch
        release = proxy_release_id(PROXY_SOURCE, PROXY_LOCK, python, arch)
        _adopt(cache, "proxies", release, release)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGE_LLM_CACHE", str(cache.root))
        yield cache


@pytest.fixture(scope="session")
def model_data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Host data that names the stand-in model."""
    path = tmp_path_factory.mktemp("model") / "tiny.Q4_K_M.gguf"
    return {"model_sha256": write_model(path), "model_source": f"file://{path}"}


class Fleet:
    """Fake hosts by class, and what deploy.py must come to for them."""

    def __init__(self, cache: Cache, model_data: Mapping[str, Any], folder: Path) -> None:
        self.cache, self.model_data, self.folder = cache, dict(model_data), folder
        self._runs = 0

    def settings(self, **more: Any) -> Settings:
        return Settings(**{**self.model_data, **more})

    def plan(self, device: Device, group: str, **more: Any) -> tuple[HostPlan, Rendered]:
        return plan_of(device, "any", group, self.settings(**more), self.cache)

    def converged(self, group: str, **more: Any) -> Device:
        return converged(DEVICES[group], "any", group, self.settings(**more), self.cache)

    def host(self, device: Device, group: str, *, answers: Mapping[str, str] | None = None,
             **more: Any) -> FakeHost:  # fmt: skip
        return FakeHost(group, device.text, {**self.model_data, **more}, **(answers or {}))

    def roll_out(self, hosts: Mapping[str, FakeHost], *options: str,
                 real: Mapping[str, Any] | None = None) -> Run:  # fmt: skip
        self._runs += 1
        return roll_out(self.folder / str(self._runs), hosts, *options, real=real)


@pytest.fixture(scope="session")
def fleet(controller: Cache, model_data: dict[str, Any],
          tmp_path_factory: pytest.TempPathFactory) -> Fleet:  # fmt: skip
    return Fleet(controller, model_data, tmp_path_factory.mktemp("fleets"))


Edit = Callable[[Device], Device]
