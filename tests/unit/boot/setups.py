"""Boot set-ups as directory trees, with the survey's and the operation's real shell run in them.

`trees/NAME` is what a host has; tools that it would have installed are in `tools`, and files that
these make are made when a tree is set up.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edge import survey_script
from edge.boot import BootPlan, plan_boot
from edge.boot.script import FUNCTIONS, script
from edge.boot.survey import parse_boot
from edge.survey import Survey
from edge.survey_script import SCRIPT, parse

HERE = Path(__file__).parent
NAMES = sorted(path.name for path in (HERE / "trees").iterdir() if path.is_dir())
STATE = "var/lib/edge-llm"


def _between(begin: str, end: str) -> str:
    return SCRIPT[SCRIPT.index(begin) : SCRIPT.index(end)]


# The rest of the survey's script tells of this machine, and takes a second.
BOOT_PART = "\n".join(
    [
        _between("LC_ALL=C", "show os"),
        _between("say dt_model", "say dmi"),
        _between("say cmdline", "say cgroup"),
    ]
)


def tools_of(name: str) -> tuple[str, ...]:
    if name.startswith("pop-os"):
        return ("kernelstub",)
    if "u-boot-menu" in name:
        return ("u-boot-update",)
    by_entries = ("systemd-boot", "unified", "refind", "vm-", "armbian", "radxa")
    if any(part in name for part in by_entries) or name.startswith("raspios"):
        return ()
    return ("grub-mkconfig", "update-grub")


@dataclass(frozen=True)
class Setup:
    """One host's files, under `root`."""

    name: str
    root: Path

    @classmethod
    def of(cls, name: str, folder: Path) -> Setup:
        """A copy of the tree in `folder`, with its tools, and what these have made."""
        root = folder / "root"
        shutil.copytree(HERE / "trees" / name, root)
        (root / "usr/sbin").mkdir(parents=True, exist_ok=True)
        for tool in tools_of(name):
            shutil.copy(HERE / "tools" / tool, root / "usr/sbin" / tool)
        if (root / "etc/grub-root").exists():
            made = root / "usr/sbin" / tools_of(name)[0]
            subprocess.run([made], check=True, capture_output=True)
        for path in [*root.glob("boot/**/*"), *root.glob("efi/**/*"), root / "etc/kernel/cmdline"]:
            if path.is_file() and "u-boot-update" not in tools_of(name):  # it makes a new one
                path.chmod(0o640)  # which no file of ours has by itself
        # What is flushed cannot be seen here, and takes most of the time.
        (root / "test-tools").mkdir()
        (root / "test-tools/sync").symlink_to("/bin/true")
        return cls(name, root)

    # --- The real scripts

    def survey(self) -> Survey:
        """What the survey's script finds in the tree."""
        return parse(self._run(SCRIPT))

    def plan(self, *asked: str) -> BootPlan:
        """What is to be done there for these tokens, by the script's part on boot files alone."""
        sections = survey_script._sections(self._run(BOOT_PART))
        version = re.search(r"6\.\d+\.\d+[^ /\\]*", self.file("proc/cmdline"))
        return plan_boot(
            asked,
            parse_boot(sections),
            cmdline=sections["cmdline"][0],
            dt_model="".join(sections["dt_model"]),
            kernel=version[0] if version else "6.1.0",
        )

    def _run(self, text: str) -> str:
        done = subprocess.run(
            ["sh", "-c", self._rooted(text)], capture_output=True, check=True, env=self._env
        )
        assert done.stderr == b""
        return done.stdout.decode()

    def carry_out(
        self, plan: BootPlan, until: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the operation's script; with `until`, only that many of its steps."""
        text = script(plan)
        if until is not None:
            steps = steps_of(plan)[:until]
            text = "\n".join([FUNCTIONS, *steps, ""])
        return subprocess.run(
            ["sh", "-c", self._rooted(text)], capture_output=True, text=True, check=False,
            env=self._env,
        )  # fmt: skip

    def apply(self, *asked: str) -> BootPlan:
        """Plan and carry out; it must succeed."""
        plan = self.plan(*asked)
        assert plan.problems == ()
        done = self.carry_out(plan)
        assert done.returncode == 0, done.stderr
        return plan

    def _rooted(self, text: str) -> str:
        found = re.subn(r"(?m)^root=  #", f"root={self.root}  #", text)
        assert found[1] == 1
        return found[0]

    @property
    def _env(self) -> dict[str, str]:
        """The tree's own tools come first: the machine's disk cannot be filled, nor be flushed."""
        return {**os.environ, "PATH": f"{self.root}/test-tools:{os.environ['PATH']}"}

    # --- Looking

    def file(self, path: str) -> str:
        """A file's text, with bytes that are none as surrogates and line ends as they are."""
        return (self.root / path).read_bytes().decode("utf-8", "surrogateescape")

    def write(self, path: str, text: str) -> None:
        """Somebody else writes a file."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(text.encode("utf-8", "surrogateescape"))

    def snapshot(self) -> dict[str, tuple[int, bytes]]:
        """Every file and folder but our state: mode and content."""
        found = {}
        for path in self.root.rglob("*"):
            name = str(path.relative_to(self.root))
            if not f"{name}/".startswith(("var/", "test-tools/")):
                content = path.read_bytes() if path.is_file() else b""
                found[name] = (path.stat().st_mode, content)
        return found

    def next_boot(self) -> list[list[str]]:
        """The words that each kernel would be started with, read as its boot loader does."""
        found = []
        for path, pattern in (
            ("boot/grub/grub.cfg", r"(?m)^\tlinux\t\S+ (.*)$"),
            ("boot/extlinux/extlinux.conf", r"(?mi)^\s*append (.*?)\r?$"),
            ("boot/armbianEnv.txt", r"(?m)^extraargs=(.*?)\r?$"),
            ("boot/firmware/cmdline.txt", r"\A(.*?)(?:\r?\n|$)"),
        ):
            if (self.root / path).exists():
                found += re.findall(pattern, self.file(path))
        for folder in ("boot/efi", "efi"):
            for entry in sorted((self.root / folder).glob("loader/entries/*.conf")):
                text = entry.read_bytes().decode()
                if re.search(r"(?m)^linux", text):
                    found.append(" ".join(re.findall(r"(?m)^options\s+(.*?)\r?$", text)))
        lines = [line.split() for line in found]
        return [line for line in lines if "single" not in line]


def steps_of(plan: BootPlan) -> list[str]:
    """The script's steps, apart from its functions: a here-document belongs to its command."""
    text = script(plan).removeprefix(FUNCTIONS).strip("\n")
    return re.findall(r"(?ms)^(put [^\n]*\n.*?^EDGE|[^\n]+)$", text)


def options_of_kernelstub(setup: Setup) -> Sequence[str]:
    """What kernelstub's configuration holds."""
    config = json.loads(setup.file("etc/kernelstub/configuration"))
    return [str(option) for option in config["user"]["kernel_options"]]
