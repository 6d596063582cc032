"""Loaders whose own tool makes their file from settings: a drop-in of ours extends these.

GRUB (/etc/default/grub.d) and Debian's u-boot-menu (/etc/u-boot-menu/conf.d). What the tool has
made decides what the next boot gets, not what is in the settings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edge.boot.edit import Edit, Generate, Written, conflict, decide
from edge.boot.files import BootFile, BootSurvey
from edge.boot.line import REST_IS_FOR_INIT
from edge.boot.loader import Loader, grub_tool
from edge.boot.next_boot import held as held_now
from edge.boot.record import Ours, Record
from edge.boot.shell_value import sourced

GRUB_DROP_IN = "/etc/default/grub.d/99-edge-llm.cfg"
U_BOOT_DROP_IN = "/etc/u-boot-menu/conf.d/99-edge-llm.conf"
HEADER = "# Written by edge-llm; local changes are overwritten by the next rollout.\n"


@dataclass(frozen=True)
class _Settings:
    """Where a loader's settings are, and how ours extends them."""

    drop_in: str
    undo: str
    variables: tuple[str, ...]
    """What becomes part of the command line; the last one is extended."""
    extension: str
    main: str
    folders: tuple[tuple[str, str], ...]
    """Folders of drop-ins and how the names of those that are read end, in order."""
    kind: str


GRUB = _Settings(
    GRUB_DROP_IN,
    "remove this file and run update-grub to undo it",
    ("GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT"),
    'GRUB_CMDLINE_LINUX_DEFAULT="${{GRUB_CMDLINE_LINUX_DEFAULT:+$GRUB_CMDLINE_LINUX_DEFAULT }}{}"',
    "/etc/default/grub",
    (("/etc/default/grub.d", ".cfg"),),
    "grub",
)
# "ro quiet" is what u-boot-update takes where nothing is set.
U_BOOT = _Settings(
    U_BOOT_DROP_IN,
    "remove this file and run u-boot-update to undo it",
    ("U_BOOT_PARAMETERS",),
    'U_BOOT_PARAMETERS="${{U_BOOT_PARAMETERS:-ro quiet}} {}"',
    "/etc/default/u-boot",
    (("/usr/share/u-boot-menu/conf.d", ".conf"), ("/etc/u-boot-menu/conf.d", ".conf")),
    "u-boot-menu",
)


def grub(boot: BootSurvey, loader: Loader, record: Record, asked: Sequence[str]) -> Written:
    """GRUB: /etc/default/grub.d/99-edge-llm.cfg and the grub.cfg that is made from it."""
    return _planned(GRUB, boot, record, asked, loader, grub_tool(boot, loader.path))


def u_boot_menu(boot: BootSurvey, loader: Loader, record: Record, asked: Sequence[str]) -> Written:
    """u-boot-menu: /etc/u-boot-menu/conf.d/99-edge-llm.conf and extlinux.conf made from it."""
    return _planned(U_BOOT, boot, record, asked, loader, boot.tools["u-boot-update"])


def uses_kernel_cmdline(boot: BootSurvey) -> bool:
    """Whether u-boot-update takes its parameters from /etc/kernel/cmdline."""
    files = [file for file in _files(U_BOOT, boot) if file.path != U_BOOT_DROP_IN]
    return not sourced(files, U_BOOT.variables[-1]).words and "/etc/kernel/cmdline" in boot.files


def _planned(
    settings: _Settings,
    boot: BootSurvey,
    record: Record,
    asked: Sequence[str],
    loader: Loader,
    tool: str,
) -> Written:
    files = _files(settings, boot)
    others = [file for file in files if file.path != settings.drop_in]
    # In the order in which they come to stand on the line.
    theirs = [each for name in settings.variables for each in sourced(others, name).words]
    decision = decide(asked, [word for word, _ in theirs])
    source = dict(theirs)
    warnings = [conflict(source[word], token, word) for token, word in decision.conflicts]

    ours, held = decision.ours, decision.held
    now = held_now(held, boot, loader)
    old = boot.files.get(settings.drop_in)
    if ours and (by := _hidden_by(settings, files, others)) and set(now) != set(held):
        warnings.append(
            f"{by} would hide {settings.drop_in}, so {' '.join(ours)} is not set: make it extend "
            f"${settings.variables[-1]}, or give it a name that sorts before ours"
        )
        ours, held = (), decision.respected
        now = held_now(held, boot, loader)
    after = _content(settings, ours) if ours else None
    before = old.text if old else None
    recorded = record.places.get(settings.drop_in, Ours())
    folder = recorded.top or ("" if old else _folder(settings, boot))
    edits = () if after == before else (Edit(settings.drop_in, before, after, folder),)
    generate = None
    if edits or set(recorded.tokens) != set(ours) or len(now) < len(held):
        generate = Generate(settings.kind, tool, loader.path, held)
    return Written(
        edits,
        {settings.drop_in: Ours(ours, top=folder)} if ours else {},
        held,
        generate,
        warnings=tuple(warnings),
    )


def _content(settings: _Settings, tokens: Sequence[str]) -> str:
    extension = settings.extension.format(" ".join(tokens))
    return f"{HEADER}# Adds to what the other files set; {settings.undo}.\n{extension}\n"


def _files(settings: _Settings, boot: BootSurvey) -> list[BootFile]:
    """In the order in which the tool reads them."""
    main = boot.files.get(settings.main)
    drop_ins = [file for folder, end in settings.folders for file in boot.below(folder, end)]
    return [main, *drop_ins] if main else drop_ins


def _hidden_by(settings: _Settings, files: Sequence[BootFile], others: Sequence[BootFile]) -> str:
    """Whose settings would keep ours from the kernel; empty where nobody's do."""
    ours = (settings.drop_in.rpartition("/")[0], settings.drop_in)
    later = [file for file in others if (file.path.rpartition("/")[0], file.path) > ours]
    later = [file for file in later if file.path.startswith(ours[0])]
    if reset := sourced(later, settings.variables[-1]).reset_by:
        return reset
    for file in files:
        for name in settings.variables:
            lines = re.findall(rf"(?m)^[ \t]*{name}=[\"']?(.*?)[\"']?[ \t]*$", file.text)
            if any(REST_IS_FOR_INIT in line.split() for line in lines):
                return file.path
    return ""


def _folder(settings: _Settings, boot: BootSurvey) -> str:
    """The topmost folder that the drop-in needs and that is not there."""
    folder = settings.drop_in.rpartition("/")[0]
    if folder in boot.folders:
        return ""
    parent = folder.rpartition("/")[0]
    return folder if parent in boot.folders or parent == "/etc/default" else parent
