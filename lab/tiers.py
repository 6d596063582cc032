"""The two kinds of hosts: containers, and machines that boot. What differs between them, as data.

Everything else (network, names, keys, power, inventory) is the same for both: see lab.fleet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lab import model, packages, rootfs, tiny_model
from lab.container import HostSpec
from lab.looks import CLASSES
from lab.machine import frozen
from lab.machine.looks import MACHINES
from lab.machine.spec import MachineSpec
from lab.network import Link
from lab.packages import Need
from lab.paths import Lab, LabError
from lab.supervisor import SPEC_FILE
from lab.system import write


@dataclass(frozen=True)
class Wiring:
    """What a host gets from its lab. authorized_key is one public key line."""

    name: str
    hardware: str
    link: Link
    authorized_key: str


class Images(Protocol):
    """What the hosts of a lab begin with, made."""

    def write_spec(self, lab: Lab, wiring: Wiring) -> None:
        """Leave what a host is in its directory, for its supervisor."""


class Tier(Protocol):
    """One kind of hosts."""

    @property
    def name(self) -> str: ...

    @property
    def classes(self) -> Sequence[str]:
        """The hardware classes there are, in the order in which they take turns."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """Packages of this machine."""

    @property
    def supervisor(self) -> str:
        """The Python module that keeps one host powered on."""

    def model(self, lab: Lab) -> model.LabModel:
        """What the lab's hub serves, in the cache; made or fetched first if need be."""

    def images(self, lab: Lab, classes: Sequence[str]) -> Images:
        """What hosts of these classes begin with; made first if need be."""


class ContainerTier:
    """systemd containers: seconds to boot, the machine's own kernel and processors."""

    name = "container"
    classes = CLASSES
    needs = packages.CONTAINER_TIER
    supervisor = "lab.supervisor"

    def model(self, lab: Lab) -> model.LabModel:
        return model.ensure(lab)

    def images(self, lab: Lab, classes: Sequence[str]) -> Images:
        return _Tree(str(rootfs.ensure(lab)))


@dataclass(frozen=True)
class _Tree:
    image: str

    def write_spec(self, lab: Lab, wiring: Wiring) -> None:
        spec = HostSpec(
            name=wiring.name,
            hardware=wiring.hardware,
            image=self.image,
            link=wiring.link,
            authorized_key=wiring.authorized_key,
        )
        write(lab.host_dir(wiring.name) / SPEC_FILE, json.dumps(spec.as_json(), indent=1))


class MachineTier:
    """QEMU machines: their own kernel, boot loader, processors; mostly emulated, and so slow."""

    name = "vm"
    classes = tuple(MACHINES)
    needs = packages.MACHINE_TIER
    supervisor = "lab.machine.supervisor"

    def model(self, lab: Lab) -> model.LabModel:
        return tiny_model.ensure(lab)

    def images(self, lab: Lab, classes: Sequence[str]) -> Images:
        wanted = dict.fromkeys(classes)
        return _FrozenMachines({name: frozen.ensure(lab, MACHINES[name]) for name in wanted})


@dataclass(frozen=True)
class _FrozenMachines:
    by_class: Mapping[str, frozen.Frozen]

    def write_spec(self, lab: Lab, wiring: Wiring) -> None:
        source = self.by_class[wiring.hardware]
        MachineSpec(
            name=wiring.name,
            hardware=wiring.hardware,
            frozen=str(source.directory),
            accelerator=source.accelerator,
            link=wiring.link,
            authorized_key=wiring.authorized_key,
        ).save(lab.host_dir(wiring.name))


TIERS: Mapping[str, Tier] = {tier.name: tier for tier in (ContainerTier(), MachineTier())}


def hosts_of(tier: Tier, asked: int | Sequence[str] | None) -> list[str]:
    """The class of each host: as many as asked, taking turns, or those asked; None is one of each.

    Raises LabError where a class is none of the tier's.
    """
    if asked is None:
        return list(tier.classes)
    if isinstance(asked, int):
        return [tier.classes[index % len(tier.classes)] for index in range(asked)]
    if unknown := [name for name in asked if name not in tier.classes]:
        raise LabError(
            f"--hosts: the {tier.name} tier has no class {', '.join(unknown)}; "
            f"it has {', '.join(tier.classes)}"
        )
    return list(asked)
