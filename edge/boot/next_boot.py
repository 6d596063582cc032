"""What the next boot of a host will run with, by what its boot loader itself reads. Pure.

Not by the files that edge-llm writes: a drop-in that update-grub has not read has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from edge.boot.files import BootSurvey
from edge.boot.line import words
from edge.boot.loader import Loader, entries

RESCUE = {"single", "recovery"}
# systemd-boot decides by itself which of its entries it takes: all of them count.
EVERY = ("systemd-boot",)


def next_lines(boot: BootSurvey, loader: Loader) -> list[tuple[str, list[str]]]:
    """For each kernel but rescue entries: the file that decides, and its words."""
    if loader.name == "grub":
        config = next(each for each in boot.grub if each.path == loader.path)
        lines = [(config.path, entry) for entry in config.entries]
    elif loader.name in ("systemd-boot", "kernelstub"):
        lines = [
            (file.path, " ".join(re.findall(r"(?m)^[ \t]*options[ \t]+(.*?)\s*$", file.text)))
            for file in entries(boot)
        ]
    elif loader.name in ("extlinux", "u-boot-menu"):
        text = boot.files[loader.path].text
        lines = [(loader.path, line) for line in re.findall(r"(?mi)^\s*append\s+(.*?)\s*$", text)]
    elif loader.name == "armbian":
        found = re.findall(r"(?m)^extraargs=(.*?)\s*$", boot.files[loader.path].text)
        lines = [(loader.path, (found or [""])[-1])]
    elif loader.name == "raspberrypi":
        lines = [(loader.path, re.split(r"[\r\n]", boot.files[loader.path].text)[0])]
    else:
        lines = []
    split = [(path, words(line)) for path, line in lines]
    return [(path, line) for path, line in split if not RESCUE & set(line)]


def held(tokens: Sequence[str], boot: BootSurvey, loader: Loader) -> tuple[str, ...]:
    """Those of `tokens` that the next boot has."""
    return tuple(token for token in tokens if token not in lacking(tokens, boot, loader)[1])


def lacking(tokens: Sequence[str], boot: BootSurvey, loader: Loader) -> tuple[str, tuple[str, ...]]:
    """The file that decides, and those of `tokens` that the next boot has not.

    Where an operator may have entries beside the tool's, by the entry that has most of them.
    """
    found = [
        (path, tuple(token for token in tokens if token not in line))
        for path, line in next_lines(boot, loader)
    ]
    if not found:
        where = loader.path or f"what boots it, which is not known ({loader.why}),"
        return where, tuple(tokens)
    choose = max if loader.name in EVERY else min
    return choose(found, key=lambda each: len(each[1]))
