"""What the machine tier works out without a machine: tables, command lines, scripts, protocol."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import chdir
from itertools import pairwise
from pathlib import Path

import pytest

from edge.model_info import read_model_info
from lab import tiny_model
from lab.machine import acpi, qemu
from lab.machine.guest import Channel, Identity
from lab.machine.image import mbr_entry
from lab.machine.looks import MACHINES
from lab.machine.qmp import Qmp, QmpError
from lab.machine.spec import MachineSpec
from lab.machine.x86 import N100, RYZEN, read_pstates
from lab.network import Link
from lab.paths import LabError
from lab.tiers import TIERS, hosts_of
from tests.unit.tiny_gguf import write_gguf

CONTAINER, VM = TIERS["container"], TIERS["vm"]


def test_each_processor_has_a_port_of_its_own() -> None:
    text = acpi.table(8, RYZEN.pstates)
    scopes = re.split(r"Scope \(", text)[1:]
    assert [scope.split(")")[0] for scope in scopes] == [f"\\_SB.CPUS.C00{n}" for n in range(8)]
    for number, scope in enumerate(scopes):
        # Control and status are one port, beside the two that C2 and C3 share.
        ports = re.findall(r"SystemIO, 8, 0, 0x([0-9A-F]{4})", scope)
        assert ports == [f"{0x5E0 + number:04X}"] * 2 + ["05F0", "05F1"]
        assert f"Package () {{ 5, 0, {number}, 0xFC, 1 }}" in scope  # a frequency domain of its own
    assert text.count("External (") == 8
    assert text.count("{") == text.count("}")


def test_pstates_go_from_the_fastest_down() -> None:
    states = acpi.pstates(3400, 2000, 800)
    assert [(state.mhz, state.code) for state in states] == [(3400, 16), (2000, 32), (800, 48)]
    listed = re.findall(r"\{ (\d+), \d+, 10, 10, (\d+), (\d+) \}", acpi.table(1, states))
    assert listed == [("3400", "16", "16"), ("2000", "32", "32"), ("800", "48", "48")]


@pytest.mark.parametrize("cpus", [0, 17])
def test_ports_do_not_run_into_those_of_the_idle_states(cpus: int) -> None:
    with pytest.raises(ValueError, match="1 to 16"):
        acpi.table(cpus, N100.pstates)


def values(words: list[str], option: str) -> list[str]:
    return [value for word, value in pairwise(words) if word == option]


def test_the_command_line_is_the_look() -> None:
    words = qemu.command(N100, "edge-n100", "tcg")
    assert words[0] == "qemu-system-x86_64"
    assert values(words, "-smp") == ["cpus=4,sockets=1,cores=4,threads=1"]
    (cpu,) = values(words, "-cpu")
    assert "vendor=GenuineIntel,family=6,model=190" in cpu
    assert "model-id=Intel(R) N100" in cpu
    assert values(qemu.command(RYZEN, "r", "tcg"), "-smp") == ["cpus=8,sockets=1,cores=4,threads=2"]
    controls = [d for d in values(words, "-device") if d.startswith("isa-debugcon")]
    assert controls == [f"isa-debugcon,iobase=0x5e{cpu},chardev=pstate{cpu}" for cpu in range(4)]
    # A comma inside a value is doubled, or QEMU reads another option.
    bios = values(words, "-smbios")[0]
    assert "vendor=American Megatrends International,, LLC.,version" in bios


def test_a_machine_is_reached_by_ssh_and_chat_or_not_at_all() -> None:
    (net,) = values(qemu.command(N100, "n", "tcg"), "-netdev")
    assert re.findall(r"hostfwd=tcp::(\d+)-10\.0\.3\.15:(\d+)", net) == [
        ("22", "22"),
        ("8000", "8000"),
    ]
    (net,) = values(qemu.command(N100, "n", "tcg", reachable=False), "-netdev")
    assert "hostfwd" not in net
    assert net.endswith(",restrict=on")


def test_the_accelerator_is_the_one_asked_for() -> None:
    assert values(qemu.command(N100, "n", "kvm"), "-accel") == ["kvm"]
    assert values(qemu.command(N100, "n", "tcg"), "-accel")[0].startswith("tcg,")


def test_a_partition_entry_says_where_it_is() -> None:
    entry = mbr_entry(2048, 8386560)
    assert len(entry) == 16
    assert entry[0] == 0x80  # bootable
    assert entry[4] == 0x83  # Linux
    assert int.from_bytes(entry[8:12], "little") == 2048
    assert int.from_bytes(entry[12:], "little") == 8386560


def test_pstate_files_are_read_in_the_order_of_the_processors(tmp_path: Path) -> None:
    for cpu in range(12):
        (tmp_path / f"pstate{cpu}").write_bytes(bytes([cpu]))
    assert read_pstates(tmp_path) == [bytes([cpu]) for cpu in range(12)]


def test_a_spec_survives_its_file(tmp_path: Path) -> None:
    link = Link("edge-n100", "edge-veth0", "10.86.7.10", 24)
    spec = MachineSpec("edge-n100", "n100", "/cache/frozen", "tcg", link, "ssh-ed25519 AAAA lab")
    spec.save(tmp_path)
    assert MachineSpec.load(tmp_path) == spec


IDENTITY = Identity("edge-n100", "0" * 32, "KEY\nwith 'quotes'\n", "PUBLIC\n", "ssh-ed25519 AAAA")


def test_an_identity_is_a_script_that_sh_takes() -> None:
    script = IDENTITY.script(1764547200.5)
    assert script.startswith("date -s @1764547200.500\n")
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    # The channel's end of a script is a line with a dot.
    assert "." not in script.splitlines()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    # Longer than a socket's address may be.
    directory = tmp_path / ("long" * 30)
    directory.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        with chdir(directory):
            server.bind(qemu.MONITOR)
        server.listen(1)
        yield server


def answer(server: socket.socket, *lines: object) -> threading.Thread:
    """Send the greeting, then one line for each command that comes, then close."""

    def talk() -> None:
        connection, _ = server.accept()
        with connection, connection.makefile("rw") as file:
            file.write(json.dumps({"QMP": {}}) + "\n")
            file.flush()
            for batch in ([{"return": {}}], *lines):
                file.readline()
                for line in batch:  # type: ignore[attr-defined]
                    file.write(json.dumps(line) + "\n")
                file.flush()

    thread = threading.Thread(target=talk, daemon=True)
    thread.start()
    return thread


def test_events_beside_an_answer_are_kept(listener: socket.socket, tmp_path: Path) -> None:
    reset = {"event": "RESET", "data": {"reason": "guest-reset"}}
    answer(listener, [reset, {"return": {"status": "running"}}])
    with Qmp(tmp_path / ("long" * 30) / qemu.MONITOR) as monitor:
        assert monitor.run("query-status") == {"status": "running"}
        assert list(monitor.wait_events()) == [reset]


def test_a_refused_command_is_an_error_in_qemus_words(
    listener: socket.socket, tmp_path: Path
) -> None:
    answer(listener, [{"error": {"class": "GenericError", "desc": "no such thing"}}])
    with (
        Qmp(tmp_path / ("long" * 30) / qemu.MONITOR) as monitor,
        pytest.raises(QmpError, match="stop: no such thing"),
    ):
        monitor.run("stop")


def test_a_machine_that_ends_while_it_is_waited_for_is_said_with_its_last_words(
    tmp_path: Path,
) -> None:
    (tmp_path / qemu.LOG).write_text("qemu: no such machine\n")

    def gone() -> None:
        raise LabError("it ended")

    with pytest.raises(LabError, match="it ended"):
        Channel(tmp_path, gone)


def test_hosts_are_a_number_or_a_list_of_classes() -> None:
    assert hosts_of(CONTAINER, None) == ["n100", "ryzen", "pi5"]
    assert hosts_of(CONTAINER, 4) == ["n100", "ryzen", "pi5", "n100"]
    assert hosts_of(VM, None) == list(MACHINES)
    assert hosts_of(VM, ["ryzen", "n100", "ryzen"]) == ["ryzen", "n100", "ryzen"]
    with pytest.raises(LabError, match="no class mac; it has n100, ryzen"):
        hosts_of(VM, ["n100", "mac"])


def test_the_tiny_model_has_the_real_ones_tokenizer_and_the_same_bytes(tmp_path: Path) -> None:
    real = write_gguf(tmp_path / "real.gguf")
    one, other = tmp_path / "one.gguf", tmp_path / "other.gguf"
    tiny_model.write(one, real)
    tiny_model.write(other, real)
    assert one.read_bytes() == other.read_bytes()
    made = read_model_info(one)
    assert made.vocab_size == read_model_info(real).vocab_size
    assert made.has_chat_template
    assert made.file_type == "Q8_0"
