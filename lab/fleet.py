"""The lab's hosts together: make them, remove them, cut their power, say how they are."""

from __future__ import annotations

import fcntl
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lab import cgroup, keys, leftovers, network, packages, sysctl
from lab.model import LabModel
from lab.network import Link
from lab.paths import Lab, LabError
from lab.power import answers, await_boot, boot_id, detach, last_words, power, ssh_command
from lab.processes import Process
from lab.progress import say, step
from lab.record import SSH_USER, Fleet, Host, Hub, load, require, save
from lab.system import give_to_person, person, run, write
from lab.tiers import TIERS, Images, Tier, Wiring, hosts_of

# What the tests, the command line and the inventory need of a lab.
__all__ = [
    "SSH_USER",
    "Fleet",
    "Host",
    "Hub",
    "answers_ssh",
    "await_boot",
    "boot_id",
    "down",
    "host_names",
    "load",
    "power_cut",
    "power_off",
    "power_on",
    "require",
    "ssh_command",
    "up",
]

_HUB_TIMEOUT_S = 60.0
# More SSH logins at once than this only wait for each other on a small machine.
_AT_ONCE = 8


@contextmanager
def _alone(lab: Lab) -> Iterator[None]:
    """One change of a lab at a time."""
    lab.state.mkdir(parents=True, exist_ok=True)
    give_to_person(lab.state)
    with (lab.state / "lock").open("w") as handle:
        give_to_person(lab.state / "lock")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another `edge lab` command to end …")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def up(
    lab: Lab, hosts: int | Sequence[str] | None = None, tier: Tier = TIERS["container"]
) -> Fleet:
    """Bring up a lab, or say that it is up already.

    hosts: how many (the tier's classes take turns), or the class of each; None is one of each.
    Raises LabError where it cannot, or where a lab with other hosts is up.
    """
    classes = hosts_of(tier, hosts)
    if not 1 <= len(classes) <= network.MAX_HOSTS:
        raise LabError(f"--hosts: {len(classes)} hosts; a lab has 1 to {network.MAX_HOSTS}")
    with _alone(lab):
        fleet = load(lab)
        if fleet is not None and _is_whole(fleet):
            keys.ensure(lab)
            return _already_up(fleet, tier, classes)
        packages.ensure(tier.needs)
        leftovers.remove(lab)
        images = tier.images(lab, classes)
        served = tier.model(lab)
        with step(f"starting {len(classes)} hosts"):
            return _make(lab, tier, images, served, classes)


def _is_whole(fleet: Fleet) -> bool:
    """False for what a crash or a restart of the machine left of a lab."""
    namespaces = network.namespaces()
    return fleet.hub.process.alive and all(host.name in namespaces for host in fleet.hosts)


def _already_up(fleet: Fleet, tier: Tier, classes: list[str]) -> Fleet:
    there = [host.hardware for host in fleet.hosts]
    if fleet.tier != tier.name or there != classes:
        raise LabError(
            f"the lab is up with other hosts (tier {fleet.tier}: {', '.join(there)}), not tier "
            f"{tier.name}: {', '.join(classes)}; run `edge lab down` first, which removes those"
        )
    for host in fleet.hosts:
        say(
            f"{host.name} is up already"
            if host.powered
            else f"{host.name} is off (power-on turns it on)"
        )
    return fleet


def _make(lab: Lab, tier: Tier, images: Images, served: LabModel, classes: Sequence[str]) -> Fleet:
    if tier.name == "container":
        sysctl.raise_for(lab, len(classes))
    subnet = network.make_bridge(lab.name)
    _keygen(lab.ssh_key, lab.name)
    give_to_person(lab.ssh_key, lab.ssh_key.with_suffix(".pub"))
    wirings = _wirings(lab, classes, subnet)
    hosts = [_install(lab, tier, images, wiring) for wiring in wirings]
    lines = [_known_host(lab, wiring) for wiring in wirings]
    keys.ensure(lab)
    write(lab.known_hosts, "".join(lines))
    give_to_person(lab.known_hosts)
    fleet = Fleet(lab.name, str(subnet), _start_hub(lab, served), tuple(hosts))
    # Recorded before the wait: whatever happens now, `down` knows of it.
    save(lab, fleet)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for host, words in pool.map(lambda host: (host, await_boot(lab, host)), hosts):
            say(f"{host.name} ({host.hardware}) is {words} at {host.address}")
    return fleet


def host_names(lab: str, classes: Sequence[str]) -> list[str]:
    """A name for each host by its class: edge-n100, edge-ryzen, edge-pi5, edge-n100-2, …"""
    seen: Counter[str] = Counter()
    names = []
    for hardware in classes:
        seen[hardware] += 1
        turn = f"-{seen[hardware]}" if seen[hardware] > 1 else ""
        names.append(f"{lab}-{hardware}{turn}")
    return names


def _wirings(lab: Lab, classes: Sequence[str], subnet: network.Network) -> list[Wiring]:
    key = lab.ssh_key.with_suffix(".pub").read_text().strip()
    wirings = []
    for index, (name, hardware) in enumerate(
        zip(host_names(lab.name, classes), classes, strict=True)
    ):
        interface = network.interface_name(lab.name, index)
        address = str(subnet[network.FIRST_HOST + index])
        wirings.append(
            Wiring(name, hardware, Link(name, interface, address, subnet.prefixlen), key)
        )
    return wirings


def _keygen(path: Path, comment: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])


def _install(lab: Lab, tier: Tier, images: Images, wiring: Wiring) -> Host:
    """Everything of a host outside it, then its power."""
    name, link = wiring.name, wiring.link
    directory = lab.host_dir(name)
    directory.mkdir(parents=True)
    _keygen(directory / "ssh_host_ed25519_key", name)
    images.write_spec(lab, wiring)
    network.plug(lab.name, link)
    process = power(lab, name, tier.supervisor)
    return Host(name, tier.name, wiring.hardware, link.address, link.interface, process)


def _known_host(lab: Lab, wiring: Wiring) -> str:
    key = (lab.host_dir(wiring.name) / "ssh_host_ed25519_key.pub").read_text().split()
    return f"{wiring.link.address},{wiring.name} {key[0]} {key[1]}\n"


def _start_hub(lab: Lab, served: LabModel) -> Hub:
    port, log = _free_port(), lab.state / "hub.log"
    what = [served.repo, served.revision, str(served.path)]
    command = [sys.executable, "-m", "lab.hub", lab.name, str(port), *what]
    pid = detach(command, log, owner=person())
    process = Process.of(pid)
    end = time.monotonic() + _HUB_TIMEOUT_S
    while process is not None and process.alive:
        if answers("127.0.0.1", port):
            endpoint = f"http://127.0.0.1:{port}"
            name = served.path.name
            return Hub(endpoint, served.repo, served.revision, name, served.sha256, process)
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    raise LabError(f"the lab's hub does not start: {last_words(log)}")


def power_off(lab: Lab, name: str) -> None:
    """Cut a host's power: nothing inside is told, and nobody outside hears from it again."""
    with _alone(lab):
        fleet = require(lab)
        host = fleet.host(name)
        network.set_cable(_link(fleet, host), connected=False)
        cgroup.of_host(name).kill()
        save(lab, _with(fleet, replace(host, process=None)))


def power_on(lab: Lab, name: str) -> None:
    """Boot a host from the disk that it had; returns when it has booted."""
    with _alone(lab):
        fleet = require(lab)
        host = fleet.host(name)
        if host.powered:
            say(f"{name} is on already")
            return
        # After a poweroff from inside, the helpers of the last boot may still be there.
        cgroup.of_host(name).kill()
        network.set_cable(_link(fleet, host), connected=True)
        host = replace(host, process=power(lab, name, TIERS[host.tier].supervisor))
        save(lab, _with(fleet, host))
        say(f"{name} is {await_boot(lab, host)} at {host.address}")


def power_cut(lab: Lab, name: str) -> None:
    """Unplug a host and plug it in again at once; returns when it has booted from its disk."""
    power_off(lab, name)
    power_on(lab, name)


def _with(fleet: Fleet, changed: Host) -> Fleet:
    hosts = tuple(changed if host.name == changed.name else host for host in fleet.hosts)
    return replace(fleet, hosts=hosts)


def _link(fleet: Fleet, host: Host) -> Link:
    prefix = network.Network(fleet.subnet).prefixlen
    return Link(host.name, host.interface, host.address, prefix)


def answers_ssh(host: Host) -> bool:
    """True if the host's sshd greets within a second."""
    return host.powered and answers(host.address, 22)


def down(lab: Lab) -> None:
    """Remove the lab, whatever state it is in; what the cache holds stays."""
    with _alone(lab):
        leftovers.remove(lab)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
