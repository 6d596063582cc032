"""Taking it away again leaves a machine's /etc, /boot and command line as they were."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from edge.fleet import CHECKOUT
from tests.vm.machine import VmHost

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
# What any change of accounts or a boot writes by itself, with us or without.
_NOT_OURS = re.compile(
    r"/etc/(passwd|group|shadow|gshadow|subuid|subgid)-$|/etc/\.pwd\.lock$|/etc/(adjtime|resolv\.conf)$"
)
_SNAPSHOT = """
sudo find /etc /boot -xdev \\( -type f -o -type l \\) -exec sh -c '
  for f; do
    if [ -L "$f" ]; then s=$(readlink "$f"); else s=$(sha256sum < "$f"); fi
    echo "$(stat -c "%a %U:%G" "$f") ${s%% *} $f"
  done' sh {} + | sort -k 4
"""


def snapshot(machine: VmHost) -> dict[str, str]:
    """Mode, owner and content of everything below /etc and /boot, by path."""
    rows = (line.rsplit(" ", 1) for line in machine.ask(_SNAPSHOT).splitlines())
    return {path: state for state, path in rows if not _NOT_OURS.search(path)}


@pytest.mark.parametrize("hardware", ["n100"])
def test_everything_is_as_it_was(fresh: Callable[[str], VmHost], hardware: str) -> None:
    machine = fresh(hardware)
    # A boot of its own first: what that writes is no doing of ours.
    machine.power_cut()
    before, cmdline = snapshot(machine), machine.cmdline()
    run = machine.rollout(reboot="if_needed")
    assert run.code == 0, run.log
    assert snapshot(machine) != before
    assert machine.cmdline() != cmdline

    undo = re.search(r"in this order:\n\n```sh\n(.*?)```", README, re.S)
    assert undo is not None
    done = machine.ssh(f"sudo bash -e <<'UNDO'\n{undo[1]}\nsync\nUNDO\n")
    assert done.returncode == 0, done.stderr
    machine.power_cut()
    assert machine.cmdline() == cmdline
    assert snapshot(machine) == before
