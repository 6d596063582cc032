"""A host, read through testinfra: what its units, processes, control groups and files are."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

import testinfra
from checks import Wrong
from login import Login

from edge.mark import SAY, after
from edge.verify import Target

ENGINE, PROXY, SOCKET = "llama-server.service", "chat-proxy.service", "chat-proxy.socket"
SLICE = "edgellm.slice"
TUNING, TIMER = "edge-llm-tuning.service", "edge-llm-tuning.timer"
UNITS = (ENGINE, PROXY, SOCKET, SLICE, TUNING, TIMER)
ANY_LOCALE = "export LC_ALL=C PATH=$PATH:/usr/sbin:/sbin; "


class Down(Exception):  # noqa: N818  (says what happened)
    """A service does not run, so that what depends on it cannot be checked; one check says so as a
    failure of its own."""


class Lost(Exception):  # noqa: N818  (says what happened)
    """The host stopped answering, or does not let us read."""


@dataclass(frozen=True, eq=False)
class Process:
    """A service's main process, as /proc has it."""

    unit: str
    pid: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    status: Mapping[str, str]
    executable: str
    directory: str
    maps: str


class Machine:
    """Reads; never writes. What is read is kept, so that all checks see the same host.

    `root` is where /sys, /proc/cmdline and boot files are looked for; another one is for tests.
    """

    def __init__(self, host: testinfra.host.Host, login: Login, root: str = "") -> None:
        self.host, self.login, self.root = host, login, root
        self._lost = ""
        self._ran: dict[tuple[str, tuple[str, ...]], str] = {}

    @classmethod
    @contextlib.contextmanager
    def of(cls, target: Target) -> Iterator[Machine]:
        """The machine of a target, with one connection for all that is read."""
        login = Login.of(target.name, target.data)
        with tempfile.TemporaryDirectory(prefix="edge-", ignore_cleanup_errors=True) as scratch:
            arguments = login.arguments(scratch)
            options = {"ssh_extra_args": shlex.join(arguments)} if login.remote else {}
            host = testinfra.get_host(login.url, sudo=login.sudo, **options)
            # testinfra would ask the host, and take a login shell's greeting for the answer.
            host.backend.get_encoding = lambda: "UTF-8"
            yield cls(host, login)
            if login.remote:
                subprocess.run(
                    ["ssh", *arguments, "-O", "exit", login.hostname],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    check=False,
                )

    def try_run(self, command: str, *args: str) -> tuple[int, str, str]:
        """Exit status, standard output and standard error. Raises Lost."""
        if self._lost:
            raise Lost("not checked: the connection was lost (see above)")
        try:
            done = self.host.run(SAY + ANY_LOCALE + command, *args)
        except RuntimeError as error:  # testinfra's word for ssh's own failures
            (out,) = error.args
            self._lost = out.stderr.strip() or "ssh failed without a word"
            raise Lost(f"not reached: {self._lost}") from None
        out, error = (
            text.decode("utf-8", "replace") for text in (done.stdout_bytes, done.stderr_bytes)
        )
        return done.rc, after(out).strip("\n"), error.strip()

    def run(self, command: str, *args: str) -> str:
        """Standard output of a command that must succeed; each is run once."""
        if (command, args) not in self._ran:
            self._ran[command, args] = self._run(command, *args)
        return self._ran[command, args]

    def _run(self, command: str, *args: str) -> str:
        status, out, error = self.try_run(command, *args)
        if status:
            if "sudo:" in error:
                raise Lost(f"sudo does not let us read: {error}; allow this user NOPASSWD")
            ran = command % tuple(map(shlex.quote, args)) if args else command
            raise Wrong("to be read", f"exit status {status}: {error or out}", ran[:200])
        return out

    def read(self, path: str) -> str:
        """A file's content, without its last newline."""
        return self.run("cat %s", path)

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""
        return self.try_run("test -e %s", path)[0] == 0

    # --- systemd

    @cached_property
    def units(self) -> dict[str, dict[str, str]]:
        """Our units as systemd has them loaded, at the time of the first check."""
        return self.show()

    def show(self) -> dict[str, dict[str, str]]:
        """Our units as systemd has them loaded now."""
        blocks = self._run(f"systemctl show {' '.join(UNITS)}").split("\n\n")
        found = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in blocks]
        return {unit["Id"]: unit for unit in found}

    # --- processes

    def runs(self, unit: str) -> bool:
        """Whether a service had a process at the time of the first check."""
        return self.units[unit]["MainPID"] != "0"

    def need(self, *units: str) -> None:
        """Raises Down where one of the services does not run."""
        for unit in units:
            if not self.runs(unit):
                state = self.units[unit]["ActiveState"]
                raise Down(f"{unit.removesuffix('.service')} is {state}")

    @cached_property
    def engine(self) -> Process:
        """llama-server. Raises Down where it does not run."""
        return self._process(ENGINE)

    @cached_property
    def proxy(self) -> Process:
        """The chat proxy. Raises Down where it does not run."""
        return self._process(PROXY)

    def _process(self, unit: str) -> Process:
        self.need(unit)
        pid = int(self.units[unit]["MainPID"])
        parts = self.run(
            "cd /proc/%s && for f in cmdline environ; do tr '\\000' '\\001' < $f | "
            "sed 's/LLAMA_API_KEY=[0-9a-f]*/LLAMA_API_KEY=-/'; echo; "  # the key stays there
            "echo @@; done; cat status; echo @@; readlink exe; echo @@; readlink cwd; echo @@; "
            "cat maps",
            str(pid),
        ).split("\n@@\n")
        argv, environ, status, executable, directory, maps = parts
        words = [word.partition("=") for word in environ.split("\1") if word]
        return Process(
            unit=unit,
            pid=pid,
            argv=tuple(argv.rstrip("\1").split("\1")),
            environment={key: value for key, _, value in words},
            status={
                key: value.strip()
                for key, _, value in (line.partition(":") for line in status.splitlines())
            },
            executable=executable,
            directory=directory,
            maps=maps,
        )

    # --- control groups

    @cached_property
    def _mounts(self) -> list[tuple[str, str, str, set[str]]]:
        """Root, mount point, type and options of each mounted hierarchy."""
        rows = []
        for line in self.read("/proc/self/mountinfo").splitlines():
            left, _, right = line.partition(" - ")
            root, mount = left.split()[3:5]
            kind, _, options = right.split()[:3]
            rows.append((root, mount, kind, set(options.split(","))))
        return rows

    def cgroup(self, process: Process, controller: str) -> Cgroup:
        """The control group of a controller that a process is in, whatever systemd says.

        Raises Wrong where the host has none.
        """
        paths: dict[str, str] = {}
        for line in self.read(f"/proc/{process.pid}/cgroup").splitlines():
            _, names, path = line.split(":", 2)
            paths.update(dict.fromkeys(names.split(","), path))
        for root, mount, kind, options in self._mounts:
            if kind == "cgroup" and controller in options and controller in paths:
                version, path = 1, paths[controller]
            elif kind == "cgroup2" and "" in paths and controller not in paths:
                version, path = 2, paths[""]
            else:
                continue
            group = PurePosixPath(mount) / PurePosixPath("/", path).relative_to(
                root if PurePosixPath(path).is_relative_to(root) else "/"
            )
            members = self.run("cat %s 2>/dev/null; :", f"{group}/cgroup.procs").split()
            # Version 2 has the file of every controller only where it is handed down to.
            if str(process.pid) in members:
                return Cgroup(self, version, str(group))
        raise Wrong(
            f"a control group of the {controller} controller",
            "none that holds the process",
            f"/proc/{process.pid}/cgroup ({process.unit})",
        )


@dataclass(frozen=True)
class Cgroup:
    """One control group's directory, version 1 or 2."""

    machine: Machine
    version: int
    directory: str

    def file(self, v1: str, v2: str) -> str:
        """Path of a file, which has another name in each version."""
        return f"{self.directory}/{v1 if self.version == 1 else v2}"

    def up_to(self, name: str) -> Cgroup:
        """The group of that name above (or equal to) this one."""
        path = PurePosixPath(self.directory)
        for group in (path, *path.parents):
            if group.name == name:
                return Cgroup(self.machine, self.version, str(group))
        raise Wrong(f"inside {name}", self.directory, "the process's control group")
