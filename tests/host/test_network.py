"""Who listens where, from the kernel's socket tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address

from checks import Say, Wrong
from machine import ENGINE, PROXY, Machine, Process

from edge.plan import ENGINE_HOST, HostPlan

LISTEN = "0A"


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket. `uid` made it; `inode` is how processes hold it."""

    address: str
    port: int
    uid: str
    inode: str

    def __str__(self) -> str:
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else (f"{self.address}:{self.port}")
        )


def _listeners(table: str) -> list[Listener]:
    """The listening sockets in /proc/net/tcp and tcp6."""
    rows = [line.split() for line in table.splitlines()]
    found = []
    for row in rows:
        if len(row) > 9 and row[3] == LISTEN:
            address, port = row[1].split(":")
            # Words of four bytes, each in the host's order: little-endian on all that we support.
            words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
            found.append(Listener(str(ip_address(b"".join(words))), int(port, 16), row[7], row[9]))
    return found


@cache
def _held(machine: Machine, process: Process) -> set[str]:
    """Inodes of the sockets that a service's processes hold."""
    group = machine.cgroup(process, "pids")
    pids = machine.read(f"{group.directory}/cgroup.procs").split()
    folders = " ".join(f"/proc/{pid}/fd" for pid in pids)
    # One that ended meanwhile is no error.
    out = machine.run(f"ls -l {folders} 2>/dev/null; :")
    return set(re.findall(r"socket:\[(\d+)\]", out))


@cache
def _table(machine: Machine, process: Process) -> list[Listener]:
    pid = str(process.pid)
    return _listeners(
        machine.run("cat /proc/%s/net/tcp; cat /proc/%s/net/tcp6 2>/dev/null; :", pid, pid)
    )


def listeners(machine: Machine, process: Process) -> list[Listener]:
    """The sockets that a service listens on."""
    held = _held(machine, process)
    return [listener for listener in _table(machine, process) if listener.inode in held]


def _of(machine: Machine, process: Process) -> set[str]:
    return {str(listener) for listener in listeners(machine, process)}


def test_engine_listens_on_loopback_only(machine: Machine, plan: HostPlan, say: Say) -> None:
    wanted, found = {f"{ENGINE_HOST}:{plan.engine.port}"}, _of(machine, machine.engine)
    if found != wanted:
        raise Wrong(_words(wanted), _words(found), f"sockets of {ENGINE} ({machine.engine.pid})")
    say.found(_words(found))


def test_proxy_listens_on_its_address_only(machine: Machine, plan: HostPlan, say: Say) -> None:
    listen = str(ip_address(plan.proxy.listen))
    wanted = {str(Listener(listen, plan.proxy.port, "", ""))}
    found = _of(machine, machine.proxy)
    if found != wanted:
        raise Wrong(_words(wanted), _words(found), f"sockets of {PROXY} ({machine.proxy.pid})")
    say.found(_words(found))


def test_nothing_else_of_ours_listens(machine: Machine) -> None:
    account = machine.run("id -u edge-llm")
    known = _of(machine, machine.engine) | _of(machine, machine.proxy)
    other = {str(each) for each in _table(machine, machine.engine) if each.uid == account} - known
    if other:
        raise Wrong("no other listeners", _words(other), "sockets of the account edge-llm")


def _words(addresses: set[str]) -> str:
    return ", ".join(sorted(addresses)) or "no listener"
