"""One thing on a converged host is not as it should be: exactly what heals it is done."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from edge.boot.drop_in import GRUB_DROP_IN
from edge.boot.record import PATH as RECORD
from edge.render import Rendered
from tests.deploy.conftest import Fleet
from tests.deploy.device import CMDLINE_TXT, N100, Device
from tests.deploy.rollout import FakeHost, Run
from tests.unit.boot.sections import boot_files

TUNING, SERVICES, GATE = "Tuning | Files", "Services | Files", "Gate | Switch and prove"
CMDLINE = "Boot | Kernel command line"
APPLY = "systemctl restart edge-llm-tuning.service"
REEXEC = "systemctl daemon-reexec"


@dataclass(frozen=True)
class Difference:
    """What is wrong on a converged device of a class, and the operations that must heal it."""

    edit: Callable[[Device], Device]
    heals: tuple[str, ...]
    group: str = "n100"
    writes: tuple[str, ...] = ()
    """Paths of the files that are written, all of them."""
    runs: tuple[str, ...] = ()
    """What else the first healing operation's command must hold."""
    spares: tuple[str, ...] = ()
    """What it must not hold."""
    settings: Mapping[str, object] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)


def _same(device: Device) -> Device:
    return device


def _swap(section: str, pattern: str, new: str) -> Callable[[Device], Device]:
    """Replace the one place in a section that matches."""

    def edit(device: Device) -> Device:
        text, count = re.subn(pattern, new, device.sections[section], flags=re.M)
        assert count == 1, f"{pattern!r} is {count} times in {section}"
        return device.having(**{section: text})

    return edit


def _unit(unit: str, key: str, value: str) -> Callable[[Device], Device]:
    def edit(device: Device) -> Device:
        blocks = device.sections["units"].split("\n--\n")
        changed = [
            re.sub(rf"^{key}=.*$", f"{key}={value}", block, flags=re.M)
            if f"Id={unit}\n" in block
            else block
            for block in blocks
        ]
        assert changed != blocks
        return device.having(units="\n--\n".join(changed))

    return edit


def _with_file(device: Device, path: str, text: str) -> Device:
    files = {path: file.text for path, file in device.survey.boot.files.items()}
    return device.having(boot_files=boot_files({**files, path: text}))


UNWANTED = json.dumps({"ok": False, "reason": "no answer within 180 s"})
KERNEL = "intel_idle.max_cstate=1 processor.max_cstate=1"

DIFFERENCES = {
    # Services: what runs, not what this run wrote.
    "unit-not-enabled": Difference(
        _unit("llama-server.service", "UnitFileState", "disabled"), (GATE,)
    ),
    "socket-not-enabled": Difference(
        _unit("chat-proxy.socket", "UnitFileState", "disabled"), (GATE,)
    ),
    "proxy-stopped": Difference(_unit("chat-proxy.service", "ActiveState", "failed"), (GATE,)),
    "unit-not-reloaded": Difference(
        _unit("llama-server.service", "NeedDaemonReload", "yes"), (GATE,)
    ),
    "killed-between-written-and-restarted": Difference(
        _swap("running", r"^(llama-server \d+) \w+$", r"\1 0123456789abcdef"), (GATE,)
    ),
    "proxy-runs-with-old-settings": Difference(
        _swap("running", r"^(chat-proxy \d+) \w+$", r"\1 0123456789abcdef"), (GATE,)
    ),
    "engine-does-not-run": Difference(_swap("running", r"^llama-server .*", ""), (GATE,)),
    "engine-link-wrong": Difference(
        _swap("releases", r"^engine-current .*$", "engine-current releases/b1-old"), (GATE,)
    ),
    "proxy-link-wrong": Difference(
        _swap("releases", r"^proxy-current .*$", "proxy-current releases/p-old"), (GATE,)
    ),
    "manifest-lost": Difference(lambda device: device.having(manifest=""), (GATE,)),
    "manifest-broken": Difference(lambda device: device.having(manifest='{"form'), (GATE,)),
    "manifest-of-another-plan": Difference(
        _swap("manifest", r'"llama-server": "\w+"', '"llama-server": "0123456789abcdef"'), (GATE,)
    ),
    "no-answer": Difference(_same, (GATE,), answers={"probe": UNWANTED}),
    "agent-is-silent": Difference(_same, (GATE,), answers={"probe": ""}),
    "limit-lifted-by-a-drop-in": Difference(
        lambda device: device.having(files=f"{device.sections['files']}\n{'0' * 64} 644 root:root "
            "/etc/systemd/system/llama-server.service.d/50-mine.conf"),
        (SERVICES, GATE),
        runs=("rm -f /etc/systemd/system/llama-server.service.d/50-mine.conf",),
        spares=("restart",),
    ),
    "folder-open-to-others": Difference(
        lambda device: device.having(
            folders="755 root:root /opt/edge-llm\n777 root:root /opt/edge-llm/bin"
        ),
        (SERVICES,),
        runs=("chown root:root /opt/edge-llm/bin && chmod go-w /opt/edge-llm/bin",),
        spares=("chown root:root /opt/edge-llm &&", "restart"),
    ),
    "engines-key-lost": Difference(lambda device: device.having(engine_key=""), (GATE,)),
    "engine-runs-with-another-key": Difference(
        _swap("running", r"^(llama-server .*)$", r"\1 other-key"), (GATE,)
    ),
    "proxy-runs-with-another-key": Difference(
        _swap("running", r"^(chat-proxy .*)$", r"\1 other-key"), (GATE,)
    ),
    "model-replaced-under-the-engine": Difference(
        _swap("running", r"^(llama-server .*)$", r"\1 stale"),
        (GATE,),
    ),
    # Artifacts
    "model-stamp-missing": Difference(
        _swap("models", r" \S+$", " -"), ("Model | Send", GATE)
    ),
    "model-touched": Difference(
        _swap("models", r"^(\d+) 1700000000", r"\1 1700000001"), ("Model | Send", GATE)
    ),
    "model-missing": Difference(
        lambda device: device.having(models=""), ("Model | Send", GATE)
    ),
    "engine-release-missing": Difference(
        _swap("releases", r"^engine .*", ""), ("Engine | Send", "Engine | Unpack and try", GATE)
    ),
    "proxy-release-missing": Difference(
        _swap("releases", r"^proxy .*", ""), ("Proxy | Send", "Proxy | Install", GATE)
    ),
    # Tuning
    "governor-changed": Difference(
        _swap("cpufreq", r"^(2 intel_pstate) performance", r"\1 powersave"),
        (TUNING,), runs=(APPLY,), spares=("update-grub", "journald"),
    ),
    "energy-preference-changed": Difference(
        # Intel's passive driver; the active one takes it from the governor.
        _swap("cpufreq", r"^0 \S+ (\S+ \S+) performance", r"0 intel_cpufreq \1 balance_power"),
        (TUNING,), runs=(APPLY,),
    ),
    "energy-preference-follows-the-governor": Difference(
        _swap("cpufreq", r"^(0 intel_pstate \S+ \S+) performance", r"\1 balance_power"), (),
    ),
    "energy-bias-changed": Difference(
        _swap("knobs", r"^(.*cpu2/power/energy_perf_bias)\|0", r"\1|6"), (TUNING,), runs=(APPLY,)
    ),
    "idle-states-allowed-again": Difference(
        lambda device: device.having(cpuidle=N100.sections["cpuidle"]), (TUNING,), runs=(APPLY,)
    ),
    "idle-state-of-one-other-cpu": Difference(
        lambda device: device.having(cpuidle=device.sections["cpuidle"]
            + "\ncpu 3\nstate 0 0 0 POLL\nstate 1 1 0 C1_ACPI\nstate 2 9 0 C2_ACPI"),
        (TUNING,), runs=(APPLY,),
    ),
    "limit-lifted": Difference(
        _same, (TUNING, CMDLINE), settings={"max_cstate": "keep", "governor": "keep"},
        writes=("/etc/edge-llm/tuning.conf",),
        runs=(f"take {GRUB_DROP_IN}", "grub /usr/sbin/grub-mkconfig", APPLY),
    ),
    "watchdog-asked": Difference(
        _swap("watchdog", r"^runtime 0", "device watchdog0 613 iTCO_wdt\nruntime 0"),
        (TUNING,), settings={"hardware_watchdog_s": 60}, runs=(REEXEC,), spares=(APPLY,),
        writes=("/etc/systemd/system.conf.d/99-edge-llm.conf",),
    ),
    "watchdog-not-asked-any-more": Difference(
        lambda device: device.having(
            files=f"{device.sections['files']}\n{'0' * 64} 644 root:root "
            "/etc/systemd/system.conf.d/99-edge-llm.conf"
        ),
        (TUNING,), spares=(APPLY,),
        runs=("rm -f /etc/systemd/system.conf.d/99-edge-llm.conf", REEXEC),
    ),
    "noatime-asked": Difference(
        _same, (TUNING,), settings={"noatime": True}, writes=("/etc/edge-llm/tuning.conf",),
        runs=(APPLY,), spares=(REEXEC,),
    ),
    "zram-gone": Difference(
        _same, (TUNING,), settings={"zram_swap_percent": 50},
        writes=("/etc/edge-llm/tuning.conf",), runs=(APPLY,),
    ),
    "timer-not-enabled": Difference(
        _unit("edge-llm-tuning.timer", "UnitFileState", "disabled"),
        (TUNING,), runs=("systemctl start edge-llm-tuning.timer",),
    ),
    "tuning-not-enabled": Difference(
        _unit("edge-llm-tuning.service", "UnitFileState", "disabled"),
        (TUNING,), runs=("systemctl enable --quiet edge-llm-tuning.service edge-llm-tuning.timer",),
        spares=("update-grub",),
    ),
    # What grub.cfg holds decides, not what is in our drop-in.
    "grub-cfg-lacks-parameter": Difference(
        lambda device: device.having(grub_cfg=N100.sections["grub_cfg"]),
        (CMDLINE,), runs=("grub /usr/sbin/grub-mkconfig /boot/grub/grub.cfg intel_idle",),
        spares=("\nput ",),
    ),
    "grub-drop-in-edited": Difference(
        lambda device: _with_file(device, GRUB_DROP_IN, "GRUB_CMDLINE_LINUX_DEFAULT=oops\n"),
        (CMDLINE,), runs=(f"put {GRUB_DROP_IN}", "grub /usr/sbin/grub-mkconfig"),
    ),
    "record-lost": Difference(
        lambda device: _with_file(device, RECORD, ""),
        (CMDLINE,), runs=(f"put {RECORD}",), spares=(f"put {GRUB_DROP_IN}",),
    ),
    "grub-drop-in-stale": Difference(
        _same, (TUNING, CMDLINE), settings={"max_cstate": "keep"},
        writes=("/etc/edge-llm/tuning.conf",),
        runs=(f"take {GRUB_DROP_IN}", "grub /usr/sbin/grub-mkconfig", f"take {RECORD}", APPLY),
    ),
    "journal-cap-changed": Difference(
        _same, (TUNING,), settings={"journal_max_mib": 32},
        writes=("/etc/systemd/journald.conf.d/50-edge-llm.conf",),
        runs=("systemctl restart systemd-journald.service",), spares=(APPLY, "update-grub"),
    ),
    "journald-runs-without-its-cap": Difference(
        _swap("journald", r"^1700000001$", "1699999999"),
        (TUNING,), runs=("systemctl restart systemd-journald.service",),
        spares=(APPLY, "update-grub"),
    ),
    "cmdline-without-tokens": Difference(
        lambda device: _with_file(device, "/boot/firmware/cmdline.txt", f"{CMDLINE_TXT}\n"),
        (CMDLINE,), group="pi5",
        runs=("put /boot/firmware/cmdline.txt ",), spares=("cmdline.txt.edge-llm.bak",),
    ),
    "rival-is-taken-over": Difference(
        lambda device: device.having(
            rivals="Id=tuned.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled"
        ),
        (TUNING,), runs=(APPLY,), settings={"take_over_power_daemons": True},
        writes=("/etc/edge-llm/tuning.conf",),
    ),
    "rival-is-only-reported": Difference(
        lambda device: device.having(
            rivals="Id=tuned.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled"
        ),
        (),
    ),
    # Preflight
    "account-missing": Difference(
        lambda device: device.having(account=""), ("Preflight | Account",), runs=("useradd",)
    ),
    "libgomp-missing": Difference(
        lambda device: device.having(libgomp=""), ("Preflight | Packages",),
        runs=("install libgomp1",), spares=("python3",),
    ),
    # Settings
    "temperature-changed": Difference(
        _same, (SERVICES, GATE), settings={"temperature": 0.2},
        writes=("/etc/edge-llm/proxy.env", "/etc/systemd/system/chat-proxy.service"),
    ),
    "weight-changed": Difference(
        _same, (SERVICES, GATE), settings={"cpu_weight": 90},
        writes=("/etc/systemd/system/edgellm.slice",),
    ),
    "threads-changed": Difference(
        _same, (SERVICES, GATE), settings={"threads": 2},
        writes=("/etc/systemd/system/llama-server.service",),
    ),
}  # fmt: skip


def _files(rendered: Rendered) -> dict[str, Difference]:
    """Each managed file once with another digest, once with another mode, once not there."""
    found = {}
    tuning = {file.path for file in rendered.tuning}
    for file in rendered.all:
        heals = (TUNING,) if file.path in tuning else (SERVICES, GATE)
        line = rf"^\w+ {file.mode} {file.owner} {re.escape(file.path)}$"
        for how, new in {
            "edited": f"{'0' * 64} {file.mode} {file.owner} {file.path}",
            "mode": f"{file.state.sha256} 666 {file.owner} {file.path}",
            "missing": "",
        }.items():
            name = f"{file.path.strip('/').replace('/', '-')}-{how}"
            found[name] = Difference(_swap("files", line, new), heals, writes=(file.path,))
    return found


@pytest.fixture(scope="module")
def differences(fleet: Fleet) -> dict[str, Difference]:
    files = _files(fleet.plan(fleet.converged("n100"), "n100")[1])
    assert len(files) == 3 * 11
    return {**DIFFERENCES, **files}


@pytest.fixture(scope="module")
def healed(fleet: Fleet, differences: dict[str, Difference]) -> Run:
    """One run for all of them: a host each."""
    hosts: dict[str, FakeHost] = {}
    for name, difference in differences.items():
        device = difference.edit(fleet.converged(difference.group))
        hosts[name] = fleet.host(
            device, difference.group, answers=difference.answers, **difference.settings
        )
    return fleet.roll_out(hosts)


def _check(run: Run, name: str, difference: Difference) -> None:
    told = run.told(name)
    assert tuple(run.changed(name)) == difference.heals, name
    assert run.failed(name) == [], name
    written = {path: each for each in told for path in each.files}
    assert set(written) == set(difference.writes), name
    did = "\n".join(each.command for each in told if each.operation)
    for part in difference.runs:
        assert part in did, name
    for part in difference.spares:
        assert part not in did, name
    # Asking for a real answer first costs a round trip only where all else is as it should be.
    probes = [each for each in told if "edge-host probe" in each.command]
    assert len(probes) == (GATE not in difference.heals or bool(difference.answers)), name


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_healed_and_nothing_else_is_done(
    healed: Run, differences: dict[str, Difference], name: str
) -> None:
    assert healed.code == 0, healed.log
    _check(healed, name, differences[name])


def test_each_managed_file_is_written_again_alone(
    healed: Run, differences: dict[str, Difference]
) -> None:
    for name in set(differences) - set(DIFFERENCES):
        _check(healed, name, differences[name])


def test_a_rival_is_named_at_the_end(healed: Run) -> None:
    assert re.search(r"rival-is-only-reported: note: tuned.service \(active, enabled\) may set",
                     healed.log)  # fmt: skip
