"""The disk of the x86 machines: Debian with its stock kernel and GRUB for a BIOS.

Made without loop devices and mounts, which not every machine that the lab runs on has: the file
system is written from the tree, and GRUB's first stages are laid before it. The machine's own
grub-install and update-grub run over it at its first boot, so that what stays is theirs.
"""

from __future__ import annotations

import struct
import tempfile
import uuid
from pathlib import Path

from lab.debian import SERVER, SERVER_SETUP, SUITE, Recipe, only_one
from lab.machine import guest
from lab.paths import Lab, LabError
from lab.progress import step
from lab.system import run, write

_SECTOR = 512
_FIRST_SECTOR = 2048
_SIZE_MIB = 4096
_GRUB = "usr/lib/grub/i386-pc"
_PACKAGES = (*SERVER, "linux-image-amd64", "grub-pc", "initramfs-tools", "e2fsprogs", "zstd")

# What a server with a serial console has in a drop-in of its own; /etc/default/grub is Debian's.
# mitigations=off as an operator may have it, and here for speed: an emulated processor forgets all
# its translations at each change of page tables, which is twice a system call with them.
# no_timer_check as images for clouds have it: where this machine is busy, the kernel's check of its
# timer sees too few ticks, and it panics ("IO-APIC + timer doesn't work").
_GRUB_DROP_IN = """\
GRUB_TIMEOUT=0
GRUB_RECORDFAIL_TIMEOUT=0
GRUB_CMDLINE_LINUX="console=ttyS0,115200 no_timer_check mitigations=off"
GRUB_TERMINAL=serial
GRUB_DISABLE_OS_PROBER=true
"""

# An initrd with everything is four times as large, and an emulated machine unpacks it slowly.
_BEFORE = """\
set -eu
mkdir -p /etc/initramfs-tools/conf.d
echo MODULES=list > /etc/initramfs-tools/conf.d/lab
printf 'virtio_pci\\nvirtio_blk\\next4\\n' > /etc/initramfs-tools/modules
"""

_SETUP = f"""\
{SERVER_SETUP}{guest.SETUP}
mkdir -p /etc/default/grub.d
cat > /etc/default/grub.d/10-lab.cfg <<'EOF'
{_GRUB_DROP_IN}EOF
cat > {guest.FINISH} <<'EOF'
grub-install /dev/vda
update-grub
EOF
mkdir -p /boot/grub
cp -r /{_GRUB} /boot/grub/
"""


def ensure(lab: Lab) -> Path:
    """The disk in the cache, made first if this recipe has not been made on this machine."""
    recipe = Recipe(
        "amd64", _PACKAGES, _SETUP, before=_BEFORE, options=("--skip=cleanup/apt/lists",)
    )
    image = lab.images / f"disk-{SUITE}-{recipe.architecture}-{recipe.digest}.qcow2"
    with only_one(lab.images / "lock-disk"):
        if not image.is_file():
            with step(f"making the Debian {SUITE} disk of the x86 machines (a minute, once)"):
                _build(recipe, image)
    return image


def _build(recipe: Recipe, image: Path) -> None:
    with tempfile.TemporaryDirectory(dir=image.parent, prefix="building-") as scratch:
        tree, raw = Path(scratch) / "tree", Path(scratch) / "disk.raw"
        recipe.build(tree)
        identity = uuid.uuid5(uuid.NAMESPACE_OID, image.name)
        _write_fstab(tree, identity)
        _write_first_grub_cfg(tree, identity)
        _write_file_system(tree, raw, identity)
        _write_boot_sectors(tree, raw)
        done = raw.with_suffix(".qcow2")
        packing = ["-c", "-o", "compression_type=zstd"]
        run(["qemu-img", "convert", *packing, "-O", "qcow2", str(raw), str(done)])
        done.replace(image)


def _write_fstab(tree: Path, identity: uuid.UUID) -> None:
    write(tree / "etc/fstab", f"UUID={identity} / ext4 errors=remount-ro 0 1\n")


def _write_first_grub_cfg(tree: Path, identity: uuid.UUID) -> None:
    kernels = sorted((tree / "boot").glob("vmlinuz-*"))
    if not kernels:
        raise LabError(f"{tree} has no kernel in /boot: the recipe is broken")
    version = kernels[-1].name.removeprefix("vmlinuz-")
    config = (
        f"linux /boot/vmlinuz-{version} root=UUID={identity} ro console=ttyS0,115200 "
        "no_timer_check\n"
        f"initrd /boot/initrd.img-{version}\nboot\n"
    )
    write(tree / "boot/grub/grub.cfg", config)


def _write_file_system(tree: Path, raw: Path, identity: uuid.UUID) -> None:
    """An ext4 with the tree in it, as the first partition of an MBR disk."""
    with raw.open("wb") as file:
        file.truncate(_SIZE_MIB << 20)
    blocks_kib = (_SIZE_MIB << 10) - _FIRST_SECTOR * _SECTOR // 1024
    # GRUB reads no file system whose checksums have a seed of their own.
    options = ["-O", "^metadata_csum_seed", "-E", f"offset={_FIRST_SECTOR * _SECTOR}"]
    what = ["-L", "root", "-U", str(identity), "-d", str(tree)]
    run(["mke2fs", "-q", "-F", "-t", "ext4", *options, *what, str(raw), f"{blocks_kib}k"])


def _write_boot_sectors(tree: Path, raw: Path) -> None:
    """GRUB's boot sector, its core right behind it, and a table with the one partition."""
    make = ["grub-mkimage", "--format=i386-pc", "--prefix=(hd0,msdos1)/boot/grub"]
    core = tree / "boot/grub/core.img"
    modules = ["biosdisk", "part_msdos", "ext2"]
    run(["chroot", str(tree), *make, "--output=/boot/grub/core.img", *modules])
    first, behind = (tree / _GRUB / "boot.img").read_bytes(), core.read_bytes()
    core.unlink()
    if len(behind) > (_FIRST_SECTOR - 1) * _SECTOR:
        raise LabError(f"GRUB's core has {len(behind)} bytes: no room before the first partition")
    with raw.open("r+b") as file:
        # The boot sector as it is looks for the core in sector 1, the core for its rest in 2.
        file.write(first[:440])
        file.seek(446)
        file.write(mbr_entry(_FIRST_SECTOR, (_SIZE_MIB << 20) // _SECTOR - _FIRST_SECTOR))
        file.seek(510)
        file.write(b"\x55\xaa")
        file.seek(_SECTOR)
        file.write(behind)


def mbr_entry(start: int, sectors: int, kind: int = 0x83) -> bytes:
    """A bootable partition in an MBR (kind: Linux); its cylinder, head and sector: see the LBA."""
    beyond = b"\xfe\xff\xff"
    return struct.pack("<B3sB3sII", 0x80, beyond, kind, beyond, start, sectors)
