"""Keeps one host powered on: `python -m lab.supervisor HOST_DIRECTORY`, in its own mount namespace.

Its mounts live in that namespace alone, so that they end with the last process of the host, however
that comes about. It ends when the host powers itself off; a power cut is a kill from outside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from lab import cgroup, network
from lab.container import Container, spec_from_json
from lab.paths import LabError

SPEC_FILE = "spec.json"
# systemd-nspawn's exit code for a container that asked for a reboot.
_REBOOT = 133


def supervise(directory: Path) -> int:
    """Boot the host of this directory until it powers off; returns the last exit code."""
    spec = spec_from_json(json.loads((directory / SPEC_FILE).read_text()))
    groups = cgroup.of_host(spec.name)
    for file in groups.join_files("lab"):
        file.write_text(str(os.getpid()))
    groups.join_files("guest")
    groups.enable_controllers()
    host = Container(spec, directory)
    host.mount_disk()
    host.provision()
    outside = way_out(spec.link, directory)
    try:
        while True:
            log(f"boot with: {host.write_boot_files()}")
            code = host.boot(groups).wait()
            log(f"the host ended with {code}" + (", a reboot" if code == _REBOOT else ""))
            if code != _REBOOT:
                return code
    finally:
        if outside is not None:
            outside.kill()
            outside.wait()


def way_out(link: network.Link, directory: Path) -> subprocess.Popen[bytes] | None:
    """The host's connection to the outside; a host without one is still a host."""
    try:
        return network.start_outside(link.namespace, directory / "outside.log")
    except LabError as error:
        log(f"this host has no way out (apt will not work inside): {error}")
        return None


def log(text: str) -> None:
    """Say what happened and when, in the host's supervisor.log."""
    print(time.strftime("%Y-%m-%d %H:%M:%S"), text, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(supervise(Path(sys.argv[1])))
    except (LabError, OSError) as error:
        log(f"cannot run this host: {error}")
        sys.exit(1)
