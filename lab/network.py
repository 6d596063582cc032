"""The lab's network: one bridge, one network namespace a host, and a way out through slirp4netns.

The hosts see each other and the controller on the bridge. Nothing of the machine's own routing,
forwarding or firewall is changed: the way out is a user-mode process for each host.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab import processes
from lab.paths import LabError
from lab.system import DIES_WITH_PARENT, quiet, run

Network = ipaddress.IPv4Network
_LOCK = Path("/run/lock/edge-lab-network")
FIRST_HOST = 10
MAX_HOSTS = 240
_CANDIDATES = [
    Network(f"10.{second}.{third}.0/24") for second in range(86, 100) for third in (7, 77)
]
# slirp4netns's own network: a host reaches the outside through it.
_SLIRP = Network("10.0.2.0/24")


@dataclass(frozen=True)
class Link:
    """One host's end of the network. interface is the controller's end of the pair."""

    namespace: str
    interface: str
    address: str
    prefix: int


def bridge_name(lab: str) -> str:
    return f"{lab}-br"


def interface_name(lab: str, index: int) -> str:
    return f"{lab}-veth{index}"


def interfaces(lab: str) -> list[str]:
    """The lab's interfaces on this machine, by their names."""
    pattern = re.compile(rf"{lab}-(br|veth\d+)")
    return [name for name in os.listdir("/sys/class/net") if pattern.fullmatch(name)]  # noqa: PTH208


def namespaces() -> list[str]:
    """All named network namespaces of this machine."""
    return [path.name for path in Path("/run/netns").glob("*")]


def pick_subnet() -> Network:
    """A /24 that overlaps no address and no route of this machine."""
    routes = json.loads(run(["ip", "-json", "-4", "route", "show", "table", "all"]) or "[]")
    addresses = json.loads(run(["ip", "-json", "-4", "address"]) or "[]")
    taken = [Network(r["dst"]) for r in routes if r.get("dst") not in (None, "default")]
    taken += [
        Network(f"{info['local']}/{info['prefixlen']}", strict=False)
        for interface in addresses
        for info in interface.get("addr_info", [])
    ]
    for candidate in _CANDIDATES:
        if not any(candidate.overlaps(network) for network in [*taken, _SLIRP]):
            return candidate
    raise LabError(f"every subnet that the lab would use is taken here ({_CANDIDATES[0]} …)")


def make_bridge(lab: str) -> Network:
    """Make the bridge on a free subnet, whose first address is the controller's."""
    bridge = bridge_name(lab)
    # Two labs that start at once must not find the same subnet free.
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subnet = pick_subnet()
        run(["ip", "link", "add", bridge, "type", "bridge"])
        run(["ip", "address", "add", f"{subnet[1]}/{subnet.prefixlen}", "dev", bridge])
        run(["ip", "link", "set", bridge, "up"])
    return subnet


def plug(lab: str, link: Link) -> None:
    """Make a host's namespace and connect it to the bridge. Replaces leftovers of the same name."""
    unplug(link)
    run(["ip", "netns", "add", link.namespace])
    inside = ["ip", "-netns", link.namespace]
    pair = ["type", "veth", "peer", "name", "host0", "netns", link.namespace]
    run(["ip", "link", "add", link.interface, *pair])
    run(["ip", "link", "set", link.interface, "master", bridge_name(lab), "up"])
    run([*inside, "address", "add", f"{link.address}/{link.prefix}", "dev", "host0"])
    run([*inside, "link", "set", "lo", "up"])
    set_cable(link, connected=True)


def set_cable(link: Link, *, connected: bool) -> None:
    """Connect or cut a host. A host without power answers nothing, not even with a reset."""
    state = "up" if connected else "down"
    run(["ip", "-netns", link.namespace, "link", "set", "host0", state])


def unplug(link: Link) -> None:
    """Remove a host's namespace and interface; nothing happens if they do not exist."""
    remove_namespace(link.namespace)
    quiet(["ip", "link", "delete", link.interface])


def remove_namespace(namespace: str) -> None:
    """End what runs in a named namespace or serves it, and remove it."""
    path = Path("/run/netns") / namespace
    processes.kill_all(processes.find("slirp4netns", str(path)))
    if path.exists():
        listed = subprocess.run(
            ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False
        )
        processes.kill_all(int(pid) for pid in listed.stdout.split())
        run(["ip", "netns", "delete", namespace])


def start_outside(namespace: str, log: Path) -> subprocess.Popen[bytes]:
    """Give a namespace a way out (its default route and its DNS, 10.0.2.3).

    Returns the process when it is ready; raises LabError if it does not get there.
    """
    read_end, write_end = os.pipe()
    command = [
        *DIES_WITH_PARENT,
        "slirp4netns",
        "--configure",
        "--mtu=1500",
        # The controller's loopback services are none of a host's business.
        "--disable-host-loopback",
        f"--ready-fd={write_end}",
        "--netns-type=path",
        f"/run/netns/{namespace}",
        "tap0",
    ]
    with log.open("w") as output, os.fdopen(read_end, "rb") as ready:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[write_end],
        )
        os.close(write_end)
        if ready.read(1) != b"1":
            process.kill()
            process.wait()
            raise LabError(f"slirp4netns gives {namespace} no way out: {log.read_text()[-500:]}")
    return process
