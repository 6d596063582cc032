"""What is asked of the kernel command line, and what the boot files hold -> what is written where.

Pure: `edge.steps.boot` carries it out, the verification asserts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edge.boot import drop_in, in_place
from edge.boot.edit import Edit, Generate, Written
from edge.boot.files import BootSurvey
from edge.boot.kernelstub import kernelstub
from edge.boot.line import words
from edge.boot.loader import Loader, find
from edge.boot.record import PATH as RECORD_PATH
from edge.boot.record import Record

MIB = 1024 * 1024
# A copy and a new file, each up to a cluster of the largest FAT (64 KiB), and folders that grow.
ROOM_FOR_FILES = 256 * 1024
# grub.cfg is written beside the old one, twice while it is checked; seldom more than 100 KiB.
ROOM_FOR_GRUB = MIB
HALF = (".edge-new", ".edge-new.new")


@dataclass(frozen=True)
class BootPlan:
    """The kernel command line of one host."""

    loader: str
    """grub, systemd-boot, kernelstub, raspberrypi, extlinux, u-boot-menu, armbian; or unknown,
    which is not written."""
    path: str
    """The file that holds the next boot's command line; empty where each kernel has its own."""
    tokens: tuple[str, ...]
    """Those of what is asked for that the next boot has: ours, and what the operator set alike."""
    pending: tuple[str, ...]
    """Those of `tokens` that act only from the next boot: /proc/cmdline has them not."""
    leaving: tuple[str, ...]
    """Ours that are taken away now, and act until the next boot."""
    edits: tuple[Edit, ...]
    """Files to write, in this order."""
    generate: Generate | None
    """The loader's tool, run after the edits; None where its file is as it should be."""
    record: Edit | None
    """What the host remembers as ours at the end, where that differs."""
    during: str
    """What it must remember while the files are being changed."""
    problems: tuple[str, ...]
    """Why the boot files cannot be written; nothing of the host is touched then."""
    reasons: dict[str, str]
    warnings: tuple[str, ...]

    @property
    def changes(self) -> bool:
        """Whether there is anything to do on the host."""
        return bool(self.edits or self.generate or self.record)


def plan_boot(
    asked: Sequence[str], boot: BootSurvey, *, cmdline: str, dt_model: str, kernel: str
) -> BootPlan:
    """Decide how the kernel parameters `asked` get onto the command line of the next boot.

    With none asked for, everything of ours is taken away again.

    Args:
        asked: tokens as the kernel takes them.
        boot: the boot files, and what tells how the host boots.
        cmdline: what the running kernel was started with.
        dt_model: the device tree's model; empty where there is none.
        kernel: the running kernel's version.
    """
    loader = find(boot, cmdline, dt_model)
    recorded = boot.files.get(RECORD_PATH)
    record = Record.parse(recorded.text) if recorded else Record()
    started = words(cmdline)
    written = _written(loader, boot, record, asked, started, kernel)
    if not any(ours.tokens for ours in written.places.values()):
        written = replace(written, places={})
    own = Record(written.places)
    text = own.text()
    before = recorded.text if recorded else None
    edit = Edit(RECORD_PATH, before, text or None) if (text or None) != before else None
    had = {token for ours in record.places.values() for token in ours.tokens}
    return BootPlan(
        loader=loader.name,
        path=loader.path,
        tokens=written.tokens,
        pending=tuple(token for token in written.tokens if token not in started),
        leaving=tuple(
            token for token in started if token in had and token not in {*written.tokens, *asked}
        ),
        edits=written.edits,
        generate=written.generate,
        record=edit,
        during=record.also(own).text(),
        problems=(*written.problems, *_obstacles(written, boot)),
        reasons={"loader": loader.why},
        warnings=written.warnings,
    )


def _written(
    loader: Loader,
    boot: BootSurvey,
    record: Record,
    asked: Sequence[str],
    started: Sequence[str],
    kernel: str,
) -> Written:
    if loader.name == "unknown":
        return _unwritten(loader, record, asked, started)
    if not asked and not record.places and not _of_before(boot):
        return Written()  # nothing of ours is there
    written = _by_loader(loader, boot, record, asked, kernel)
    leftover = boot.files.get(drop_in.GRUB_DROP_IN)
    if leftover is not None and loader.name != "grub":
        # Of the time before the host got another loader.
        edit = Edit(leftover.path, leftover.text, None)
        written = replace(written, edits=(*written.edits, edit))
    # What a run that died has left beside a file that it was writing.
    halves = [boot.files[path] for path in sorted(boot.files) if path.endswith(HALF)]
    gone = (Edit(file.path, file.text, None) for file in halves)
    return replace(written, edits=(*gone, *written.edits))


def _of_before(boot: BootSurvey) -> list[str]:
    """What versions that kept no record, and runs that died, have left."""
    return [
        path
        for path in boot.files
        if path.endswith((in_place.COPY, *HALF))
        or path in (drop_in.GRUB_DROP_IN, drop_in.U_BOOT_DROP_IN)
    ]


def _by_loader(
    loader: Loader, boot: BootSurvey, record: Record, asked: Sequence[str], kernel: str
) -> Written:
    match loader.name:
        case "grub":
            return drop_in.grub(boot, loader, record, asked)
        case "u-boot-menu" if drop_in.uses_kernel_cmdline(boot):
            return in_place.kernel_cmdline(boot, loader, record, asked)
        case "u-boot-menu":
            return drop_in.u_boot_menu(boot, loader, record, asked)
        case "kernelstub":
            return kernelstub(boot, loader, record, asked)
        case "systemd-boot":
            return in_place.systemd_boot(boot, record, asked, kernel)
        case "raspberrypi":
            return in_place.raspberry_pi(boot, loader, record, asked)
        case "armbian":
            return in_place.armbian(boot, loader, record, asked)
        case _:
            return in_place.extlinux(boot, loader, record, asked)


def _unwritten(
    loader: Loader, record: Record, asked: Sequence[str], started: Sequence[str]
) -> Written:
    """Nothing: what is missing, or what of ours is left, is for a person."""
    missing = [token for token in asked if token not in started]
    stale = {
        place: [token for token in ours.tokens if token not in asked]
        for place, ours in record.places.items()
    }
    head = f"boot loader not known ({loader.why}): nothing was written"
    warnings = [
        f"{head}; take {' '.join(tokens)} out of {place} by hand"
        for place, tokens in stale.items()
        if tokens
    ]
    if missing:
        warnings.append(f"{head}; add {' '.join(missing)} to the kernel command line by hand")
    return Written(places=record.places, warnings=tuple(warnings))


def _obstacles(written: Written, boot: BootSurvey) -> list[str]:
    """Why the files cannot be written as they are mounted."""
    rooms = {edit.path: ROOM_FOR_FILES for edit in written.edits}
    if written.generate:
        rooms[written.generate.path] = ROOM_FOR_GRUB
    found = [
        f"{path} is larger than was read of it; it is not edited"
        for path in rooms
        if path in boot.files and not boot.files[path].whole
    ]
    for path, room in rooms.items():
        mount = boot.mount_of(path)
        if mount is not None and not mount.writable:
            found.append(
                f"{mount.mount} is mounted read-only, and {path} is to be written: remount it "
                "(mount -o remount,rw) and mend /etc/fstab"
            )
        elif mount is not None and mount.free_bytes < room:
            found.append(
                f"{mount.mount} has {mount.free_bytes // 1024} KiB free and {room // 1024} are "
                f"needed to write {path} safely: make room (old kernels?)"
            )
    return list(dict.fromkeys(found))
