"""The whole deploy.py for every class: bare hosts, converged hosts, a hundred hosts."""

from __future__ import annotations

import base64
import json
import re

import pytest

from edge.survey_script import SCRIPT
from tests.deploy.conftest import Fleet
from tests.deploy.device import CMDLINE_TXT, DEVICES
from tests.deploy.rollout import Exec, Run

INSTALL = [
    "Model | Send",
    "Engine | Send",
    "Engine | Unpack and try",
    "Proxy | Send",
    "Proxy | Install",
    "Services | Files",
    "Gate | Switch and prove",
]
FIRST = ["Preflight | Packages", "Preflight | Account", "Tuning | Files"]
CMDLINE = "Boot | Kernel command line"
BARE = [*FIRST, CMDLINE, *INSTALL]
EXPECTED = {
    "n100": BARE,
    "ryzen": BARE,
    "pi5": BARE,
    "generic": [*FIRST, *INSTALL],
}
CLASSES = sorted(EXPECTED)


@pytest.fixture(scope="module")
def bare(fleet: Fleet) -> Run:
    hosts = {group: fleet.host(device, group) for group, device in DEVICES.items()}
    return fleet.roll_out(hosts)


def _one(run: Run, host: str, operation: str) -> Exec:
    (found,) = (each for each in run.told(host) if each.operation == operation)
    return found


@pytest.mark.parametrize("host", CLASSES)
def test_a_bare_host_gets_every_step_in_order(bare: Run, host: str) -> None:
    assert bare.code == 0, bare.log
    assert bare.changed(host) == EXPECTED[host]
    assert bare.failed(host) == []
    told = bare.told(host)
    assert told[0].operation == ""
    assert "say unreadable" in told[0].command
    # In the order of the plan, and a large file takes three: what is there, the bytes, the rename.
    sends = ("Model | Send", "Engine | Send", "Proxy | Send")
    expected = [op for op in EXPECTED[host] for _ in range(3 if op in sends else 1)]
    assert [each.operation for each in told[1:]] == expected


@pytest.mark.parametrize("host", CLASSES)
def test_what_a_bare_host_is_told(bare: Run, fleet: Fleet, host: str) -> None:
    plan, rendered = fleet.plan(DEVICES[host], host)
    assert re.search(r"install python3 libgomp1\b", _one(bare, host, BARE[0]).command)
    assert "useradd --system" in _one(bare, host, BARE[1]).command
    tuning, services = _one(bare, host, "Tuning | Files"), _one(bare, host, "Services | Files")
    assert tuning.files == {file.path: file.content for file in rendered.tuning}
    wanted = (rendered.agent, *rendered.services)
    assert services.files == {file.path: file.content for file in wanted}
    desired = json.loads(_one(bare, host, "Gate | Switch and prove").stdin or "")
    assert desired["releases"] == {
        "engine": plan.engine.release_id, "proxy": plan.proxy.release_id
    }  # fmt: skip
    assert desired["digests"] == rendered.digests
    assert desired["model"]["sha256"] == fleet.model_data["model_sha256"]
    moved = [each.command for each in bare.told(host) if each.operation == "Model | Send"][-1]
    assert f"!= {plan.model.sha256}" in moved
    assert plan.model.path in moved


def test_each_boot_loader_gets_its_own_kernel_command_line(bare: Run) -> None:
    grub = "/etc/default/grub.d/99-edge-llm.cfg"
    for host, tokens in (
        ("n100", "intel_idle.max_cstate=1 processor.max_cstate=1"),
        ("ryzen", "processor.max_cstate=1"),
    ):
        command = _one(bare, host, CMDLINE).command
        assert f"\nput {grub} " in command
        assert f"\ngrub /usr/sbin/grub-mkconfig /boot/grub/grub.cfg {tokens}\n" in command
    line = _one(bare, "pi5", CMDLINE).command
    put = re.search(r"(?ms)^put /boot/firmware/cmdline.txt <<'EDGE'\n(.*?)^EDGE", line)
    assert put is not None
    text = base64.b64decode(put[1]).decode()
    assert text == f"{CMDLINE_TXT} cgroup_enable=memory cgroup_memory=1\n"
    assert f"cmdline.txt: + {text.strip()}" in bare.said("pi5")
    assert "generic: note: boot loader not known" in bare.log


def test_the_run_ends_with_every_host_in_the_table(bare: Run) -> None:
    assert "4 of 4 hosts serve and are as they should be." in bare.log
    assert re.search(r"^@fake/n100 +n100 ", bare.log, re.M)
    assert re.search(r"^@fake/generic +generic ", bare.log, re.M)
    assert "@fake/pi5: takes effect at the next boot: cgroup_enable=memory" in bare.log


@pytest.fixture(scope="module")
def settled(fleet: Fleet) -> Run:
    hosts = {group: fleet.host(fleet.converged(group), group) for group in DEVICES}
    return fleet.roll_out(hosts)


@pytest.mark.parametrize("host", CLASSES)
def test_a_converged_host_is_asked_twice_and_told_nothing(settled: Run, host: str) -> None:
    assert settled.code == 0, settled.log
    assert settled.changed(host) == []
    told = settled.told(host)
    assert [each.operation for each in told] == ["", ""]
    assert "say unreadable" in told[0].command
    assert "edge-host probe" in told[1].command


def test_nothing_to_do_is_what_pyinfra_reports(settled: Run) -> None:
    totals = settled.result["results"]["totals"]
    assert totals["success"] == totals["error"] == 0
    assert not [op for op in settled.result["plan"] if op["hosts_with_change"]]
    assert "4 of 4 hosts serve and are as they should be." in settled.log


def test_a_hundred_hosts_cost_a_hundred_times_what_one_does(fleet: Fleet, bare: Run) -> None:
    names = {f"{group}-{number}": group for number in range(25) for group in DEVICES}
    run = fleet.roll_out({n: fleet.host(DEVICES[group], group) for n, group in names.items()})
    assert run.code == 0, run.log
    for name, group in names.items():
        assert run.changed(name) == EXPECTED[group]
        assert len(run.told(name)) == len(bare.told(group))
    assert "100 of 100 hosts serve" in run.log


def test_the_devices_have_the_sections_that_the_script_prints() -> None:
    printed = re.findall(r"^ *(?:say|show) (\w+)", SCRIPT, re.M)
    for device in DEVICES.values():
        assert list(device.sections) == printed


def test_the_survey_reads_every_file_that_a_rollout_writes(fleet: Fleet) -> None:
    listed = SCRIPT.partition("say files\nfor f in ")[2].partition("; do")[0]
    patterns = listed.replace("\\\n", " ").split()
    # In a shell, unlike fnmatch, a star ends at a slash.
    globs = [re.compile(re.escape(p).replace(r"\*", "[^/]*") + r"\Z") for p in patterns]
    for group, device in DEVICES.items():
        for file in fleet.plan(device, group)[1].all:
            assert any(glob.match(file.path) for glob in globs), f"{group}: {file.path}"
