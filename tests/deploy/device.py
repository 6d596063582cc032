"""Devices as `edge/survey.sh` describes them: one a class, bare, and after a rollout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from edge.artifacts import Cache
from edge.idle import off
from edge.plan import HostPlan
from edge.planning import plan_host
from edge.render import Rendered, render
from edge.settings import Settings
from edge.survey import Survey
from edge.survey_script import parse
from tests.unit.boot.sections import GRUB_TOOLS, boot_files, grub_cfg

TOOLS = "curl sudo tar gzip sha256sum apt-get systemd-run flock"
UNITS = ("edgellm.slice", "llama-server.service", "chat-proxy.socket", "chat-proxy.service",
         "edge-llm-tuning.service", "edge-llm-tuning.timer")  # fmt: skip


@dataclass(frozen=True)
class Device:
    """A survey's text by section; sections that no test looks at stay empty."""

    sections: Mapping[str, str]

    def having(self, **sections: str) -> Device:
        """The same device with other sections."""
        return replace(self, sections={**self.sections, **sections})

    def swapped(self, section: str, old: str, new: str) -> Device:
        """The same device with `old` replaced by `new`, which must be there, in one section."""
        text = self.sections[section]
        assert old in text, f"{old!r} is not in section {section}:\n{text}"
        return self.having(**{section: text.replace(old, new)})

    @property
    def text(self) -> str:
        """What the survey's script prints."""
        return "\n".join(f"@@{name}\n{text}" for name, text in self.sections.items()) + "\n"

    @property
    def survey(self) -> Survey:
        return parse(self.text)


def _cpus(count: int, threads_a_core: int = 1) -> str:
    return "\n".join(f"{n} {n // threads_a_core} 0 0 1" for n in range(count))


def _idle(driver: str, *states: str) -> str:
    rows = [f"state {n} {n * 10} 0 {name}" for n, name in enumerate(states)]
    return "\n".join([f"driver {driver}", *rows])


CMDLINE_TXT = "console=tty1 root=PARTUUID=1ab-02 rootfstype=ext4 fsck.repair=yes rootwait"

_MINIMAL = Device(
    {
        "os": 'ID=debian\nVERSION_ID="13"\nPRETTY_NAME="Debian GNU/Linux 13 (trixie)"',
        "kernel": "x86_64\n6.12.41-amd64\n64",
        "page_size": "4096",
        "glibc": "glibc 2.41",
        "boot_id": "00000000-0000-4000-8000-000000000000",
        "user": "0",
        "cpuinfo": "processor : 0",
        "cpus": _cpus(4),
        "numa": "0 8000000",
        "memory": "MemTotal: 8000000 kB\nMemAvailable: 7000000 kB\nSwapTotal: 0 kB",
        "disk": "/opt/edge-llm 60000000 / rw relatime\n/var/lib/edge-llm 60000000 / rw relatime\n"
        "/etc 60000000 / rw relatime",
        "dt_model": "",
        "dmi": "",
        "cpufreq": "",
        "cpuidle": "driver none",
        "known_idle": "",
        "knobs": "",
        "cmdline": "BOOT_IMAGE=/boot/vmlinuz root=UUID=0a ro quiet",
        "boot": GRUB_TOOLS,
        "boot_mounts": "/etc 60000000 / rw\n/boot 60000000 / rw",
        "grub_cfg": grub_cfg(["/boot/vmlinuz root=UUID=0a ro quiet"]),
        "boot_files": boot_files({"/etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n'}),
        "cgroup": "v2\ncpuset cpu io memory hugetlb pids rdma misc",
        "systemd": "systemd 257 (257.7-1)\nsystemd",
        "swaps": "",
        "zram": "yes",
        "watchdog": "runtime 0",
        "rivals": "",
        "throttled": "",
        # A minimal host has neither python3 nor OpenMP.
        "tools": "\n".join(TOOLS.split()),
        "python": "",
        "libgomp": "",
        "account": "",
        "folders": "",
        "manifest": "",
        "releases": "",
        "models": "",
        "files": "",
        "engine_key": "",
        "journald": "1700000000",
        "units": "",
        "running": "",
        "unreadable": "",
    }
)

N100 = _MINIMAL.having(
    cpuinfo="vendor_id : GenuineIntel\nmodel name : Intel(R) N100",
    dmi="sys_vendor AZW\nproduct_name EQ",
    cpufreq="\n".join(
        f"{n} intel_pstate powersave performance,powersave balance_performance "
        "default,performance,balance_performance,balance_power,power"
        for n in range(4)
    ),
    cpuidle=_idle("intel_idle", "POLL", "C1_ACPI", "C2_ACPI", "C3_ACPI"),
    knobs="\n".join(f"/sys/devices/system/cpu/cpu{n}/power/energy_perf_bias|6|" for n in range(4)),
)
RYZEN = _MINIMAL.having(
    os='ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"',
    glibc="glibc 2.39",
    cpuinfo="vendor_id : AuthenticAMD\nmodel name : AMD Ryzen 5 3500U with Radeon Vega",
    cpus=_cpus(8, threads_a_core=2),
    memory="MemTotal: 14000000 kB\nMemAvailable: 13000000 kB\nSwapTotal: 2097148 kB",
    cpufreq="\n".join(
        f"{n} acpi-cpufreq schedutil conservative,ondemand,userspace,powersave,performance,"
        "schedutil - -"
        for n in range(8)
    ),
    cpuidle=_idle("acpi_idle", "POLL", "C1", "C2", "C3"),
    systemd="systemd 255 (255.4-1ubuntu8)\nsystemd",
    knobs="/sys/firmware/acpi/platform_profile|balanced|low-power balanced performance",
)
PI5 = _MINIMAL.having(
    kernel="aarch64\n6.12.47+rpt-rpi-2712\n64",
    page_size="16384",
    cpuinfo="CPU implementer : 0x41",
    dt_model="Raspberry Pi 5 Model B Rev 1.0",
    cpufreq="0 cpufreq-dt ondemand conservative,ondemand,userspace,powersave,performance,"
    "schedutil - -",
    cmdline=CMDLINE_TXT,
    boot="",
    boot_mounts=_MINIMAL.sections["boot_mounts"] + "\n/boot/firmware 400000 /boot/firmware rw",
    grub_cfg="",
    boot_files=boot_files({"/boot/firmware/cmdline.txt": f"{CMDLINE_TXT}\n"}),
    cgroup="v2\ncpuset cpu io pids",
    throttled="throttled=0x0",
)
GENERIC = _MINIMAL.having(
    cpuinfo="vendor_id : GenuineIntel\nmodel name : Intel Xeon Processor (Skylake)",
    cpuidle=_idle("acpi_idle", "POLL", "C1", "C2"),
    # A kernel that came from outside: nothing to write.
    cmdline="console=ttyS0 root=/dev/vda rw",
    boot="",
    grub_cfg="",
    boot_files="",
)
DEVICES = {"n100": N100, "ryzen": RYZEN, "pi5": PI5, "generic": GENERIC}


def plan_of(
    device: Device, name: str, group: str, settings: Settings, cache: Cache
) -> tuple[HostPlan, Rendered]:
    """The plan that deploy.py must come to for a device, and its files."""
    plan = plan_host(name, [group], settings, device.survey, cache)
    assert isinstance(plan, HostPlan), [str(problem) for problem in plan]
    return plan, render(plan)


def converged(device: Device, name: str, group: str, settings: Settings, cache: Cache) -> Device:
    """The device after a rollout and, where one was due, a reboot."""
    # The python3 that apt installs is known from the distribution; the survey then reads it.
    python = plan_of(device, name, group, settings, cache)[0].proxy.python
    after = device.having(
        tools="\n".join(["python3", *TOOLS.split()]),
        python=python,
        libgomp="/usr/lib/libgomp.so.1",
        account="990",
    )
    # What a rollout sets is read by the next plan: it must come to the same files.
    for _round in range(2):
        plan, rendered = plan_of(after, name, group, settings, cache)
        after = after.having(**_tuned(device, plan), **_installed(plan, rendered))
    assert plan_of(after, name, group, settings, cache)[1] == rendered
    return after


def _tuned(device: Device, plan: HostPlan) -> dict[str, str]:
    """What a rollout and the boot after it leave. States beyond the limit are not there any more
    where a kernel parameter says so, else they are disabled."""
    tuning, boot, sections = plan.tuning, plan.boot, device.sections
    governor, epp = tuning.knob("governor").value, tuning.knob("epp").value
    policies = []
    for line in sections["cpufreq"].splitlines():
        number, driver, found, governors, preference, epps = line.split()
        policies.append(" ".join([number, driver, governor or found, governors,
                                  epp or preference, epps]))  # fmt: skip
    beyond = {state.index for state in off(tuning.idle, device.survey)}
    states = []
    for line in sections["cpuidle"].splitlines():
        words = line.split(" ", 4)
        if words[0] == "state" and int(words[1]) in beyond:
            if any("max_cstate" in token for token in boot.tokens):
                continue
            words[3] = "1"
        states.append(" ".join(words))
    tuned = {"cpufreq": "\n".join(policies), "cpuidle": "\n".join(states),
             "known_idle": sections["cpuidle"]}  # fmt: skip
    tuned["knobs"] = "\n".join(_set(line, plan) for line in sections["knobs"].splitlines())
    if tuning.noatime:
        tuned["disk"] = sections["disk"].replace(" rw relatime", " rw noatime")
    if tuning.zram_percent:
        tuned["swaps"] = "/dev/zram1 4000000\nours zram1"
    if tuning.watchdog_s:
        tuned["watchdog"] = sections["watchdog"].replace(
            "runtime 0", f"runtime {tuning.watchdog_s}s"
        )
    if boot.tokens:
        tuned["cmdline"] = " ".join([sections["cmdline"], *boot.tokens])
    if boot.generate:
        entry = " ".join(["/boot/vmlinuz root=UUID=0a ro quiet", *boot.tokens])
        tuned["grub_cfg"] = grub_cfg([entry])
    if boot.loader == "raspberrypi":
        tuned["cgroup"] = "v2\ncpuset cpu io memory pids"
    if boot.changes:
        files = {path: file.text for path, file in device.survey.boot.files.items()}
        for edit in (*boot.edits, *([boot.record] if boot.record else [])):
            assert edit.after is not None
            files[edit.path] = edit.after
        tuned["boot_files"] = boot_files(files)
    return tuned


def _set(line: str, plan: HostPlan) -> str:
    """A line of the survey's knobs once that is set."""
    path, value, choices = line.split("|")
    for knob in plan.tuning.knobs:
        if knob.value and fnmatchcase(path, knob.path):
            words = value.replace("[", "").replace("]", "")
            value = words.replace(knob.value, f"[{knob.value}]") if "[" in value else knob.value
    return f"{path}|{value}|{choices}"


def _installed(plan: HostPlan, rendered: Rendered) -> dict[str, str]:
    engine, proxy, model = plan.engine.release_id, plan.proxy.release_id, plan.model
    units = []
    for unit in UNITS:
        enabled = "static" if unit.endswith(".slice") else "enabled"
        units.append(
            f"Id={unit}\nLoadState=loaded\nActiveState=active\nUnitFileState={enabled}\n"
            "NeedDaemonReload=no"
        )
    manifest = {"format": 1, "digests": dict(rendered.digests)}
    return {
        "manifest": json.dumps(manifest),
        "releases": f"engine {engine}\nengine-current releases/{engine}\n"
        f"proxy {proxy}\nproxy-current releases/{proxy}",
        "models": f"{model.size_bytes} 1700000000 {model.path} "
        f"{model.sha256}:{model.size_bytes}:1700000000",
        "files": "\n".join(
            f"{file.state.sha256} {file.mode} {file.owner} {file.path}" for file in rendered.all
        ),
        "engine_key": "ok",
        "journald": "1700000001\n1700000000",
        "units": "\n--\n".join(units),
        "running": "\n".join(
            f"{unit} {100 + n} {digest}"
            for n, (unit, digest) in enumerate(sorted(rendered.digests.items()))
        ),
    }
