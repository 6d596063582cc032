"""The arm64 machine: its device tree, and what its firmware gives the kernel."""

from __future__ import annotations

import pytest

from lab.looks import LOOKS, PI_CMDLINE
from lab.machine import pi_firmware, pi_tree
from lab.machine.image import mbr_entry
from lab.machine.pi_image import disk_signature
from lab.paths import LabError

# The parts of what `dtc` prints of QEMU 7.2's virt board that matter here.
VIRT = """\
/dts-v1/;

/ {
\tmodel = "linux,dummy-virt";
\tcompatible = "linux,dummy-virt";

\tcpus {
\t\t#size-cells = <0x00>;

\t\tcpu-map {

\t\t\tsocket0 {

\t\t\t\tcluster0 {

\t\t\t\t\tcore0 {
\t\t\t\t\t\tcpu = <0x8001>;
\t\t\t\t\t};
\t\t\t\t};
\t\t\t};
\t\t};

\t\tcpu@0 {
\t\t\treg = <0x00>;
\t\t};

\t\tcpu@1 {
\t\t\treg = <0x01>;
\t\t};
\t};

\tchosen {
\t\tstdout-path = "/pl011@9000000";
\t\trng-seed = <0xaefaf554 0xcbb21972>;
\t\tkaslr-seed = <0xe0e9f123 0xd5df4c22>;
\t};
};
"""
OWN = "console=tty1 root=PARTUUID=1ab00000-02 rootwait"


def test_the_tree_names_a_pi_5() -> None:
    tree = pi_tree.as_pi5(VIRT)
    assert 'model = "Raspberry Pi 5 Model B Rev 1.0";' in tree
    assert 'compatible = "raspberrypi,5-model-b", "brcm,bcm2712", "linux,dummy-virt";' in tree


def test_each_processor_has_the_operating_points() -> None:
    tree = pi_tree.as_pi5(VIRT)
    for cpu in range(2):
        _, _, behind = tree.partition(f"\t\tcpu@{cpu} {{\n")
        node = behind.partition("};")[0]
        assert "clocks = <&labclock>;" in node
        assert "operating-points-v2 = <&labpoints>;" in node
        assert f"reg = <0x0{cpu}>;" in node
    assert tree.count("<&labclock>") == 2
    assert "opp-hz = /bits/ 64 <1500000000>;" in tree
    assert "opp-hz = /bits/ 64 <2400000000>;" in tree


def test_nothing_in_the_tree_is_random() -> None:
    assert "-seed" not in pi_tree.as_pi5(VIRT)
    assert 'stdout-path = "/pl011@9000000";' in pi_tree.as_pi5(VIRT)


@pytest.mark.parametrize("lost", ['model = "linux', 'compatible = "linux', "cpu@", "cpus {"])
def test_another_board_s_tree_is_refused(lost: str) -> None:
    with pytest.raises(LabError, match="not a virt board's"):
        pi_tree.as_pi5(VIRT.replace(lost, "other"))


def test_the_kernel_gets_the_firmware_s_words_then_the_file_s() -> None:
    words = pi_firmware.command_line(f"{OWN}\n").split()
    assert words[-3:] == OWN.split()
    assert "cgroup_disable=memory" in words[:-3]


def test_memory_is_not_disabled_where_the_file_asks_for_it() -> None:
    words = pi_firmware.command_line(f"{OWN} cgroup_enable=memory cgroup_memory=1\n").split()
    assert "cgroup_disable=memory" not in words
    assert words[-2:] == ["cgroup_enable=memory", "cgroup_memory=1"]


@pytest.mark.parametrize(
    "asked",
    [
        "cgroup_enable=cpuset",
        "cgroup_memory=1",
        "xcgroup_enable=memory",
        "\ncgroup_enable=memory",  # a Pi's firmware reads the first line only
    ],
)
def test_what_does_not_ask_for_memory(asked: str) -> None:
    assert "cgroup_disable=memory" in pi_firmware.command_line(f"{OWN} {asked}\n").split()


@pytest.mark.parametrize("text", ["", "\n"])
def test_an_empty_file_leaves_the_firmware_s_words(text: str) -> None:
    assert pi_firmware.command_line(text) == pi_firmware.command_line("")
    assert "cgroup_disable=memory" in pi_firmware.command_line(text)


def test_the_serial_port_is_the_board_s() -> None:
    line = pi_firmware.command_line("console=serial0,115200 console=tty1")
    assert "console=ttyAMA0,115200 console=tty1" in line


def test_lines_that_windows_ended() -> None:
    assert pi_firmware.command_line(f"{OWN}\r\n") == pi_firmware.command_line(OWN)


def test_the_disk_is_the_one_that_its_command_line_names() -> None:
    assert disk_signature(LOOKS["pi5"].disk[str(PI_CMDLINE)]) == 0x1AB00000


def test_an_mbr_entry() -> None:
    # Start and length in sectors, little-endian, in the last eight of sixteen bytes; the type in
    # the fifth.
    entry = mbr_entry(8192, 0x100000, 0x0C)
    assert len(entry) == 16
    assert entry[4] == 0x0C
    assert entry[8:] == bytes.fromhex("00200000 00001000")
