"""Which boot loader starts this host, by evidence: what it has told the kernel, not what is there.

A host may have files of several loaders: GRUB installed and never used, a stub where a file used to
be, entries of a former installation. What boots it is known from what the running kernel was
started with; where that tells nothing, or two things, nothing is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edge.boot.files import BootFile, BootSurvey
from edge.boot.line import words

CMDLINE_TXT = ("/boot/firmware/cmdline.txt", "/boot/cmdline.txt")
ARMBIAN_ENV = "/boot/armbianEnv.txt"
EXTLINUX = "/boot/extlinux/extlinux.conf"
KERNELSTUB = "/etc/kernelstub/configuration"
ENTRY_FOLDERS = ("/boot/loader/entries", "/efi/loader/entries", "/boot/efi/loader/entries")
GRUB_TOOLS = {
    "/boot/grub/grub.cfg": ("grub-mkconfig", "update-grub"),
    "/boot/grub2/grub.cfg": ("grub2-mkconfig", "grub-mkconfig"),
}


@dataclass(frozen=True)
class Loader:
    """What boots a host, and why that is believed."""

    name: str
    """grub, systemd-boot, kernelstub, raspberrypi, extlinux, u-boot-menu, armbian; or unknown."""
    why: str
    path: str = ""
    """The file that holds the next boot's command line, where there is one for all kernels."""


def unknown(why: str) -> Loader:
    """A loader that is not written, and why."""
    return Loader("unknown", why)


def find(boot: BootSurvey, cmdline: str, dt_model: str) -> Loader:
    """What boots this host. `cmdline` is the running kernel's, `dt_model` the device tree's."""
    started = words(cmdline)
    image = _value(started, "BOOT_IMAGE")
    info = boot.evidence.get("LoaderInfo", "")
    if "StubInfo" in boot.evidence:
        return unknown("a unified kernel image was booted; its command line is inside of it")
    if info.startswith("systemd-boot"):
        return _systemd_boot(boot, f"the firmware was told so by {info}")
    if image:
        return _grub(boot, started, image)
    if info and not info.startswith("GRUB"):
        return unknown(f"the firmware was told of {info}")
    if dt_model.startswith("Raspberry Pi") and "u-boot,version" not in boot.evidence:
        return _raspberry_pi(boot, started)
    if EXTLINUX in boot.files or ARMBIAN_ENV in boot.files:
        return _u_boot(boot, started)
    initrd = _value(started, "initrd")
    if "efi" in boot.evidence and initrd and "\\" in initrd:
        return _systemd_boot(boot, "its initrd= is a path as systemd-boot gives it")
    return unknown(_unused(boot))


def _unused(boot: BootSurvey) -> str:
    if boot.grub:
        return "GRUB is installed, and did not start this kernel (no BOOT_IMAGE= in /proc/cmdline)"
    if entries(boot):
        return "there are boot entries, and nothing tells that they started this kernel"
    if "u-boot,version" in boot.evidence:
        return "U-Boot started it, with a script of its own"
    return "none of the files that are known to lead to a kernel's command line"


def _systemd_boot(boot: BootSurvey, why: str) -> Loader:
    if KERNELSTUB in boot.files and "kernelstub" in boot.tools:
        return Loader("kernelstub", f"{why}; {KERNELSTUB} makes its entries", KERNELSTUB)
    if not entries(boot):
        return unknown(f"systemd-boot: {why}, and none of its entries was found")
    return Loader("systemd-boot", why)


def entries(boot: BootSurvey) -> list[BootFile]:
    """systemd-boot's entries that start a Linux."""
    files = [file for folder in ENTRY_FOLDERS for file in boot.below(folder, ".conf")]
    return [file for file in files if re.search(r"(?m)^[ \t]*linux[ \t]", file.text)]


def _grub(boot: BootSurvey, started: list[str], image: str) -> Loader:
    why = f"BOOT_IMAGE={image} in /proc/cmdline"
    root = _value(started, "root")
    own = [each for each in boot.grub if any(_same_root(entry, root) for entry in each.entries)]
    extlinux = boot.files.get(EXTLINUX)
    if extlinux and image in re.findall(r"(?mi)^\s*(?:linux|kernel)\s+(\S+)", extlinux.text):
        if not own:
            return _extlinux(boot, f"{why}, which {EXTLINUX} names")
        return unknown(f"{why}: both {own[0].path} and {EXTLINUX} lead to it")
    if not own and any(each.uses_entry_files for each in boot.grub):
        return unknown(
            f"GRUB ({why}) with entries in /boot/loader/entries, which its own tool manages: "
            'grubby --update-kernel=ALL --args="…"'
        )
    if not own:
        seen = ", ".join(each.path for each in boot.grub) or "no grub.cfg"
        return unknown(f"{why}, and no entry with root={root} ({seen})")
    if len(own) > 1:
        own = [each for each in own if _tool(boot, each.path)]
    if len(own) != 1:
        paths = ", ".join(each.path for each in boot.grub)
        return unknown(f"{why}, and several files lead to it: {paths}")
    if not _tool(boot, own[0].path):
        return unknown(f"GRUB ({why}), and no tool that makes {own[0].path}")
    if "grub" not in boot.drop_ins_read_by:
        return unknown(f"GRUB ({why}), whose grub-mkconfig reads no /etc/default/grub.d")
    return Loader("grub", why, own[0].path)


def grub_tool(boot: BootSurvey, path: str) -> str:
    """The tool that makes the grub.cfg at `path`; the first that can write beside it."""
    found = _tool(boot, path)
    assert found is not None
    return found


def _tool(boot: BootSurvey, path: str) -> str | None:
    names = GRUB_TOOLS.get(path, ("grub-mkconfig", "grub2-mkconfig"))
    return next((boot.tools[name] for name in names if name in boot.tools), None)


def _raspberry_pi(boot: BootSurvey, started: list[str]) -> Loader:
    lines = [line for line in boot.config_txt if line.replace(" ", "") != "cmdline=cmdline.txt"]
    if lines or boot.evidence.get("os_prefix"):
        named = ", ".join(lines) or f"os_prefix {boot.evidence['os_prefix']}"
        return unknown(f"config.txt makes the firmware read another command line ({named})")
    there = [boot.files[path] for path in CMDLINE_TXT if path in boot.files]
    lines_of = {file.path: words(file.text) for file in there}
    # The old place holds a stub since the boot partition is mounted elsewhere.
    real = [file for file in there if _value(lines_of[file.path], "root") is not None]
    if not real:
        if not there:
            return unknown("a Raspberry Pi without a cmdline.txt")
        return Loader("raspberrypi", "the firmware reads it; it has no root=", there[0].path)
    root = _value(started, "root")
    used = [file for file in real if _value(lines_of[file.path], "root") == root]
    if not used:
        return unknown(
            f"this kernel's root={root} is not the one in {real[0].path}: it was started with "
            "another file (from the network?), or that one was changed since; boot with it first"
        )
    if len(used) > 1 and used[0].text != used[1].text:
        return unknown(f"two files lead to it: {used[0].path}, {used[1].path}; remove the old one")
    return Loader("raspberrypi", f"the firmware reads {used[0].path}", used[0].path)


def _u_boot(boot: BootSurvey, started: list[str]) -> Loader:
    root = _value(started, "root")
    env, conf = boot.files.get(ARMBIAN_ENV), boot.files.get(EXTLINUX)
    by_script = any(word.startswith("ubootpart=") for word in started)
    devices = re.findall(r"(?m)^rootdev=(.*?)\s*$", env.text) if env else []
    armbian = env is not None and (by_script or devices[-1:] == [root])
    extlinux = conf is not None and any(
        _same_root(line, root) for line in re.findall(r"(?mi)^\s*append\s+(.*)$", conf.text)
    )
    if armbian and extlinux and not by_script:
        return unknown(f"both {ARMBIAN_ENV} and {EXTLINUX} lead to root={root}")
    if armbian:
        return Loader("armbian", f"U-Boot's script reads {ARMBIAN_ENV}", ARMBIAN_ENV)
    if extlinux:
        return _extlinux(boot, f"root={root} is what {EXTLINUX} gives")
    path = EXTLINUX if conf else ARMBIAN_ENV
    return unknown(f"{path} is there, and this kernel was not started with its root= ({root})")


def _extlinux(boot: BootSurvey, why: str) -> Loader:
    if "u-boot-update" in boot.tools:
        if "u-boot" not in boot.drop_ins_read_by:
            return unknown(f"{why}; its u-boot-update reads no /etc/u-boot-menu/conf.d")
        return Loader("u-boot-menu", f"{why}; u-boot-update makes it", EXTLINUX)
    return Loader("extlinux", why, EXTLINUX)


def _same_root(line: str, root: str | None) -> bool:
    return root is not None and _value(words(line), "root") == root


def _value(found: list[str], name: str) -> str | None:
    return next((w.partition("=")[2] for w in reversed(found) if w.startswith(f"{name}=")), None)
