"""What `edge verify` says of the next boot's command line, loader by loader."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import testinfra

# As its own pytest.ini has it.
sys.path.append(str(Path(__file__).resolve().parents[2] / "host"))

from checks import Say, Wrong
from login import Login
from machine import Machine

from edge.boot import BootPlan
from tests.host import test_boot
from tests.unit.boot.setups import Setup

TOKENS = ("a.b=1", "c_d=2")
LOADERS = {
    "debian-13-efi": "boot/grub/grub.cfg",
    "debian-13-systemd-boot": "boot/efi/loader/entries/"
    "b08dfa6083e7567a1921a715000001fb-6.12.41+deb13-amd64.conf",
    "pop-os-22.04": "boot/efi/loader/entries/Pop_OS-current.conf",
    "raspios-edited-on-windows": "boot/firmware/cmdline.txt",
    "armbian-own-extraargs": "boot/armbianEnv.txt",
    "debian-13-u-boot-menu": "boot/extlinux/extlinux.conf",
    "radxa-extlinux": "boot/extlinux/extlinux.conf",
}


def check(setup: Setup, plan: BootPlan) -> dict[str, str]:
    """Run the check on the tree; what it says."""
    login = Login(remote=False, sudo=False)
    machine = Machine(testinfra.get_host("local://"), login, str(setup.root))
    said: list[tuple[str, object]] = []
    host: Any = SimpleNamespace(boot=plan, tuning=SimpleNamespace(kernel_parameters=TOKENS))
    test_boot.test_kernel_parameters_in_boot_files(machine, host, Say(said))
    return {kind: str(text) for kind, text in said}


@pytest.mark.parametrize("name", LOADERS)
def test_each_loader_s_own_file_is_read(name: str, tmp_path: Path) -> None:
    setup = Setup.of(name, tmp_path)
    plan = setup.apply(*TOKENS)
    assert check(setup, plan) == {"found": f"/{LOADERS[name]}: {' '.join(TOKENS)}"}
    setup.write(LOADERS[name], setup.file(LOADERS[name]).replace(" c_d=2", ""))
    with pytest.raises(Wrong) as wrong:
        check(setup, plan)
    assert "a.b=1 c_d=2" in str(wrong.value)
    assert LOADERS[name] in str(wrong.value)


def test_a_line_that_no_longer_boots_is_told(tmp_path: Path) -> None:
    setup = Setup.of("raspios-bookworm", tmp_path)
    plan = setup.apply(*TOKENS)
    setup.write("boot/firmware/cmdline.txt", "console=tty1\nroot=/dev/mmcblk0p2 a.b=1 c_d=2\n")
    with pytest.raises(Wrong, match="one line with one root="):
        check(setup, plan)


def test_a_loader_that_is_not_written_is_a_note(tmp_path: Path) -> None:
    setup = Setup.of("fedora-42", tmp_path)
    (note,) = check(setup, setup.plan(*TOKENS)).values()
    assert note.startswith("boot loader unknown: GRUB (BOOT_IMAGE=")
