"""The main job on real hosts: bare to serving, again without a change, and through faults."""

from __future__ import annotations

import json
import signal
import struct
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import requests

from lab import fleet as lab_fleet
from tests.lab.conftest import OwnLab
from tests.lab.rollout import begin, data, deploy, hold_lock, main_pid, pids

CLASSES = ("n100", "ryzen", "pi5")


def await_true(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"this did not happen: {what}"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def served(own_lab: OwnLab) -> OwnLab:
    """The lab's hosts, provisioned from bare."""
    run = deploy(own_lab)
    assert run.code == 0, run.log
    assert "3 of 3 hosts serve" in run.log
    return own_lab


@pytest.fixture(autouse=True)
def left_as_found(served: OwnLab) -> Iterator[None]:
    """Whatever a test did to the fleet, the next one finds it converged."""
    yield
    run = deploy(served)
    assert run.code == 0, run.log


def ask(lab: OwnLab, hardware: str, question: str) -> list[dict[str, object]]:
    """The events of a streamed answer."""
    body = {"prompt": question, "temperature": 0, "max_tokens": 40}
    url = f"http://{lab.host(hardware).address}:8000/chat"
    with requests.post(url, json=body, headers=lab.headers, stream=True, timeout=60) as answer:
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line.startswith(b"data: ")]
    return [json.loads(line[6:]) for line in lines]


@pytest.mark.parametrize("hardware", CLASSES)
def test_a_bare_host_streams_a_sensible_answer(served: OwnLab, hardware: str) -> None:
    events = ask(served, hardware, "What is the capital of France? Answer in one sentence.")
    texts = [str(event["text"]) for event in events if "text" in event]
    assert len(texts) > 3
    assert "Paris" in "".join(texts)
    assert events[-1]["done"] is True
    assert events[-1]["finish_reason"] in ("stop", "length")


def test_a_second_run_changes_nothing(served: OwnLab) -> None:
    before = pids(served)
    run = deploy(served)
    assert run.code == 0, run.log
    assert run.changed == {}
    assert pids(served) == before


def test_a_proxy_setting_restarts_the_proxy_only(served: OwnLab) -> None:
    before = pids(served)
    run = deploy(served, *data(temperature=0.31))
    assert run.code == 0, run.log
    after = pids(served)
    for hardware in CLASSES:
        assert after[hardware, "llama-server"] == before[hardware, "llama-server"]
        assert after[hardware, "chat-proxy"] != before[hardware, "chat-proxy"]
    assert set(run.changed) == {"Services | Files", "Gate | Switch and prove"}


@pytest.fixture(scope="module")
def lab_model(own_lab: OwnLab) -> bytes:
    hub = own_lab.fleet.hub
    return (own_lab.lab.models / hub.sha256[:16] / hub.file).read_bytes()


@pytest.fixture(scope="module")
def other_model(lab_model: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab's model with another tag in its header: another file, the same answers."""
    path = tmp_path_factory.mktemp("model") / "other.gguf"
    path.write_bytes(lab_model.replace(b"8k-lc100k-mix1-ep2", b"8k-lc100k-mix1-ep3", 1))
    return path


@pytest.fixture(scope="module")
def broken_model(lab_model: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole file with one layer more in its header than in its tensors: no engine loads it."""
    key = b"llama.block_count" + struct.pack("<I", 4)  # 4: the type uint32
    path = tmp_path_factory.mktemp("model") / "broken.gguf"
    changed = lab_model.replace(key + struct.pack("<I", 30), key + struct.pack("<I", 31), 1)
    assert changed != lab_model
    path.write_bytes(changed)
    return path


def model(path: Path) -> list[str]:
    digest = sha256(path.read_bytes()).hexdigest()
    return data(model_source=f"file://{path}", model_sha256=digest)


def test_another_model_restarts_the_engine_only(served: OwnLab, other_model: Path) -> None:
    before = pids(served)
    run = deploy(served, *model(other_model))
    assert run.code == 0, run.log
    after = pids(served)
    for hardware in CLASSES:
        assert after[hardware, "llama-server"] != before[hardware, "llama-server"]
        assert after[hardware, "chat-proxy"] == before[hardware, "chat-proxy"]
    assert "Model | Send" in run.changed


def test_a_killed_controller_does_not_lose_the_restart(served: OwnLab) -> None:
    host = served.host("n100")
    before = main_pid(served, "n100", "llama-server")
    # The agent cannot begin while somebody holds its lock: the unit is written, not restarted.
    holder = hold_lock(served, host)
    with begin(served, "--limit", host.name, *data(context_per_slot=1024)) as controller:
        unit = "/etc/systemd/system/llama-server.service"
        await_true(
            lambda: served.ssh(host, f"grep -q 'ctx-size 2048' {unit}").returncode == 0,
            "the unit with the new context is written",
        )
        controller.kill()
    served.ask(host, "sudo pkill -KILL -f 'edge-host activate' || true")
    served.ask(host, "sudo pkill -f 'sleep 600' || true")
    holder.wait()
    assert main_pid(served, "n100", "llama-server") == before

    run = deploy(served, "--limit", host.name, *data(context_per_slot=1024))
    assert run.code == 0, run.log
    after = main_pid(served, "n100", "llama-server")
    assert after != before
    assert "--ctx-size\n2048\n" in served.ask(
        host, f"sudo cat /proc/{after}/cmdline | tr '\\000' '\\n'"
    )


def test_power_cut_in_the_middle_of_the_model(served: OwnLab, lab_model: bytes) -> None:
    host = served.host("pi5")
    served.ask(host, "sudo rm -rf /opt/edge-llm/models")
    models = served.lab.host_dir(host.name)

    def arrived() -> int:
        return sum(part.stat().st_size for part in models.rglob("models/*/*.part"))

    with begin(served) as controller:
        await_true(lambda: arrived() > 5_000_000, "the transfer is under way")
        lab_fleet.power_off(served.lab, host.name)
        _, log = controller.communicate()
    assert controller.returncode != 0
    assert "The next run goes on from what has arrived" in log
    assert "2 of 3 hosts serve" in log, log
    assert 0 < arrived() < len(lab_model)

    lab_fleet.power_on(served.lab, host.name)
    run = deploy(served)
    assert run.code == 0, run.log
    assert "model: resuming at" in run.log
    leftovers = (
        "sudo find /opt/edge-llm /var/lib/edge-llm -name '*.part' -o -name '*.tmp' -o -name '.new*'"
    )
    assert served.ask(host, leftovers) == ""
    assert ask(served, "pi5", "Say hello.")[-1]["done"] is True


def test_an_engine_that_cannot_serve_sends_the_host_back(
    served: OwnLab, broken_model: Path
) -> None:
    run = deploy(served, *model(broken_model), *data(gate_timeout_s=20))
    assert run.code != 0
    assert "Went back to what was last good; the host serves again." in run.log, run.log
    assert "0 of 3 hosts serve and are as they should be" in run.log
    for hardware in CLASSES:
        assert ask(served, hardware, "Say hello.")[-1]["done"] is True


def test_a_host_that_is_off_is_named_and_the_others_go_on(served: OwnLab) -> None:
    host = served.host("ryzen")
    lab_fleet.power_off(served.lab, host.name)
    run = deploy(served, *data(temperature=0.32))
    assert run.code != 0
    assert "2 of 3 hosts serve" in run.log
    assert f"{host.name}: FAILED: not reached" in run.log
    lab_fleet.power_on(served.lab, host.name)


def test_a_receiver_whose_controller_is_gone_does_not_block_the_next_run(served: OwnLab) -> None:
    host = served.host("n100")
    hub = served.fleet.hub
    folder = f"/opt/edge-llm/models/{hub.sha256[:16]}"
    part = f"{folder}/{hub.file}.part"
    # $$$$: systemd makes $$ of it.
    receiver = f"exec 9>>{part}; flock 9; echo $$$$ > {part}.pid; exec cat <>/run/gone >&9"
    served.ask(
        host,
        f"sudo rm -rf {folder} && sudo mkdir -p {folder} && sudo mkfifo /run/gone && "
        f"sudo systemd-run --quiet --collect --unit=gone sh -c '{receiver}'",
    )
    await_true(
        lambda: served.ssh(host, f"test -s {part}.pid && systemctl is-active gone").returncode == 0,
        "the receiver holds its file",
    )
    run = deploy(served, "--limit", host.name)
    assert run.code == 0, run.log
    assert served.ssh(host, "systemctl is-active gone").stdout.strip() == "inactive"
    assert served.ask(host, f"ls -A {folder}").split() == [".verified", hub.file]


def test_a_model_that_lost_its_stamp_is_not_sent_again(served: OwnLab) -> None:
    host = served.host("n100")
    served.ask(host, "sudo rm /opt/edge-llm/models/*/.verified")
    run = deploy(served, "--limit", host.name)
    assert run.code == 0, run.log
    assert "model: it is there and whole" in run.log
    assert "MiB/s" not in run.log
    assert served.ask(host, "cat /opt/edge-llm/models/*/.verified").startswith(
        served.fleet.hub.sha256
    )


def test_ctrl_c_is_no_success(served: OwnLab) -> None:
    host = served.host("n100")
    holder = hold_lock(served, host)  # the gate cannot begin
    try:
        with begin(served, "--limit", host.name, *data(temperature=0.33)) as controller:
            env = "/etc/edge-llm/proxy.env"
            await_true(
                lambda: served.ssh(host, f"sudo grep -q 0.33 {env}").returncode == 0,
                "the new setting is on the host",
            )
            controller.send_signal(signal.SIGINT)
            _, log = controller.communicate(timeout=60)
    finally:
        served.ask(host, "sudo pkill -f 'sleep 600' || true")
        holder.wait()
    assert controller.returncode == 130
    assert "Interrupted" in log
