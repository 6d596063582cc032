"""The arm64 machine's disk and firmware, without the machine: what a boot takes from the disk."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

import pytest

from lab import packages
from lab.machine import pi_firmware, pi_image
from lab.machine.foreign import programs_of
from lab.paths import LabError
from lab.system import run

PARTITION = f"@@{pi_image.BOOT_START_MIB}M"
KERNEL, INITRD = b"the kernel" * 1000, b"the initrd" * 1000


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A disk with a tree that has nothing but what the recipe counts on."""
    packages.ensure(packages.ARM64_MACHINE)
    tree = tmp_path / "tree"
    for directory in ("etc", "boot/firmware"):
        (tree / directory).mkdir(parents=True)
    (tree / "boot/vmlinuz-6.12-16k").write_bytes(KERNEL)
    (tree / "boot/initrd.img-6.12-16k").write_bytes(INITRD)
    pi_image.assemble(tree, tmp_path / "disk.raw")
    return tmp_path / "disk.raw"


def boot(raw: Path) -> Sequence[str]:
    """What the firmware makes of a disk that lies under an overlay, as a host's does."""
    disk = raw.with_suffix(".qcow2")
    run(["qemu-img", "convert", "-O", "qcow2", str(raw), str(disk)])
    host = raw.parent / "host"
    host.mkdir(exist_ok=True)
    return pi_firmware.load(host, disk)


def put(raw: Path, name: str, text: str) -> None:
    """Write a file of the FAT partition."""
    file = raw.parent / "new"
    file.write_text(text)
    run(["mcopy", "-o", "-i", f"{raw}{PARTITION}", str(file), f"::/{name}"])


def test_a_boot_takes_kernel_initrd_and_line_from_the_fat_partition(raw: Path) -> None:
    words = boot(raw)
    assert words[0::2] == ["-kernel", "-initrd", "-append"]
    host = raw.parent / "host"
    assert (host / words[1]).read_bytes() == KERNEL
    assert (host / words[3]).read_bytes() == INITRD
    assert words[5].endswith("rootfstype=ext4 fsck.repair=yes rootwait")
    # Nothing else stays: half a gigabyte a host.
    assert sorted(path.name for path in host.iterdir()) == sorted([words[1], words[3]])


def test_what_was_written_decides_the_next_boot(raw: Path) -> None:
    boot(raw)
    put(raw, "cmdline.txt", "root=PARTUUID=1ab00000-02 lab.test=1\n")
    put(raw, pi_image.KERNEL, "another kernel")
    words = boot(raw)
    assert words[5].endswith("root=PARTUUID=1ab00000-02 lab.test=1")
    assert (raw.parent / "host" / words[1]).read_text() == "another kernel"


@pytest.mark.parametrize("lost", [pi_image.KERNEL, pi_image.INITRD, "cmdline.txt"])
def test_a_disk_that_cannot_boot_says_what_is_missing(raw: Path, lost: str) -> None:
    run(["mdel", "-i", f"{raw}{PARTITION}", f"::/{lost}"])
    with pytest.raises(LabError, match=f"cannot boot this machine: .*{lost}"):
        boot(raw)


def test_the_root_is_the_partition_that_the_line_names(raw: Path) -> None:
    with raw.open("rb") as disk:
        mbr = disk.read(512)
        assert mbr[440:444] == (0x1AB00000).to_bytes(4, "little")
        start = int.from_bytes(mbr[446 + 16 + 8 : 446 + 16 + 12], "little")
        disk.seek(start * pi_image.SECTOR + 1024 + 56)
        assert disk.read(2) == b"\x53\xef"  # ext4's superblock


def test_foreign_programs_run_only_while_a_disk_is_made() -> None:
    packages.ensure(packages.ARM64_MACHINE)
    entry = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
    before = entry.exists()
    with programs_of("aarch64"):
        assert platform.machine() == "aarch64" or "enabled" in entry.read_text().split()
    assert entry.exists() == before
