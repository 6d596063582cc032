"""The checks of tests/host where a container has nothing to show: sysfs trees, tables, logins."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import testinfra

from edge.idle import IdleLimit
from edge.knobs import KNOBS, KnobPlan
from edge.tuning import TuningPlan

# As its own pytest.ini has it.
sys.path.append(str(Path(__file__).resolve().parent.parent / "host"))

import cpu_variants
import report
from checks import Say, Wrong
from login import Login, LoginError
from machine import ENGINE, PROXY, UNITS, Down, Lost, Machine

from edge.boot import BootPlan
from edge.reboot import RebootPlan
from edge.survey_script import SCRIPT
from tests.host import (
    test_answers,
    test_boot,
    test_engine,
    test_files,
    test_keys,
    test_limits,
    test_network,
    test_power,
    test_services,
    test_tuning,
)

WORDS = {"energy_bias": "0", "huge_pages": "madvise"}


def knob(key: str, value: str) -> KnobPlan:
    """A row of the plan with the table's own paths."""
    row = next(row for row in KNOBS if row.key == key)
    return KnobPlan(key, row.title, value, row.path, row.choices, f"why {key}")


PLAN = TuningPlan(
    knobs=tuple(knob(row.key, WORDS.get(row.key, "performance")) for row in KNOBS),
    idle=IdleLimit(1, None),
    disabled_idle_states=(2, 3),
    noatime=("/", "/var"),
    zram_percent=50,
    watchdog_s=0,
    stop_rivals=(),
    disable_rivals=(),
    kernel_parameters=("intel_idle.max_cstate=1",),
    reasons={
        key: f"why {key}"
        for key in ("idle_states", "kernel_parameters", "noatime", "zram", "watchdog")
    },
    warnings=(),
)
NOTHING = replace(
    PLAN, knobs=tuple(knob(row.key, "") for row in KNOBS), idle=IdleLimit(None, None), noatime=(),
    zram_percent=0, kernel_parameters=(),
)  # fmt: skip


BOOT = BootPlan(
    loader="grub",
    path="/boot/grub/grub.cfg",
    tokens=("intel_idle.max_cstate=1",),
    pending=(),
    leaving=(),
    edits=(),
    generate=None,
    record=None,
    during="",
    problems=(),
    reasons={"loader": "why loader"},
    warnings=(),
)
NEVER = RebootPlan("never", 300, (), "", ())


@pytest.fixture
def n100(tmp_path: Path) -> Machine:
    """A machine with an N100's cpufreq, cpuidle and kernel command line, all as planned."""
    for cpu in range(4):
        policy = tmp_path / f"sys/devices/system/cpu/cpufreq/policy{cpu}"
        policy.mkdir(parents=True)
        (policy / "scaling_governor").write_text("performance\n")
        (policy / "scaling_available_governors").write_text("performance powersave\n")
        (policy / "energy_performance_preference").write_text("performance\n")
        (policy / "energy_performance_available_preferences").write_text("default performance\n")
        (policy / "scaling_driver").write_text("intel_cpufreq\n")
        for state, name in enumerate(("POLL", "C1E", "C6", "C10")):
            folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cpuidle/state{state}"
            folder.mkdir(parents=True)
            (folder / "name").write_text(f"{name}\n")
            (folder / "latency").write_text(f"{state * 100}\n")
            (folder / "disable").write_text(f"{int(state >= 2)}\n")
        (tmp_path / f"sys/devices/system/cpu/cpu{cpu}/power").mkdir()
        (tmp_path / f"sys/devices/system/cpu/cpu{cpu}/power/energy_perf_bias").write_text("0\n")
    for path, text in {
        "sys/firmware/acpi/platform_profile": "performance",
        "sys/firmware/acpi/platform_profile_choices": "low-power balanced performance",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "proc/cmdline": "root=/dev/sda2 intel_idle.max_cstate=1 quiet",
        "proc/meminfo": "MemTotal:  4000000 kB\nMemFree:  1 kB",
        "proc/swaps": "Filename Type Size Used Priority\n/dev/zram1 partition 1999996 0 100",
        "run/edge-llm-zram": "zram1 2000000",
        "proc/self/mounts": "/dev/sda2 / ext4 rw,noatime 0 0\n/dev/sda3 /var ext4 rw,noatime 0 0",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    return Machine(testinfra.get_host("local://"), Login(remote=False, sudo=False), str(tmp_path))


def check(
    function: Any, machine: Machine, plan: TuningPlan = PLAN, reboot: RebootPlan = NEVER
) -> dict[str, str]:
    """Run a check; what it says."""
    said: list[tuple[str, object]] = []
    function(machine, SimpleNamespace(tuning=plan, boot=BOOT, reboot=reboot), Say(said))
    return {kind: str(text) for kind, text in said}


CPU = "sys/devices/system/cpu"
CHANGED = [
    (test_tuning.test_governor, f"{CPU}/cpufreq/policy2/scaling_governor", "powersave"),
    (
        test_tuning.test_energy_preference,
        f"{CPU}/cpufreq/policy3/energy_performance_preference",
        "balance_power",
    ),
    (test_tuning.test_energy_bias, f"{CPU}/cpu3/power/energy_perf_bias", "6"),
    (test_tuning.test_platform_profile, "sys/firmware/acpi/platform_profile", "balanced"),
    (test_tuning.test_idle_states, f"{CPU}/cpu1/cpuidle/state3/disable", "0"),
]


@pytest.mark.parametrize(("function", "file", "value"), CHANGED)
def test_one_cpu_that_was_changed_is_named(
    n100: Machine, tmp_path: Path, function: Any, file: str, value: str
) -> None:
    assert "found" in check(function, n100)
    (tmp_path / file).write_text(value + "\n")
    again = Machine(n100.host, n100.login, n100.root)
    with pytest.raises(Wrong) as caught:
        check(function, again)
    text = caught.value.text("the rollout heals it")
    assert f"/{file}" in text
    assert f"found     {value}" in text
    assert "where     /sys/" in text


def seen(machine: Machine, path: str, text: str) -> Machine:
    """The machine once a file of it has changed."""
    (Path(machine.root) / path).write_text(text + "\n")
    return Machine(machine.host, machine.login, machine.root)


@pytest.mark.parametrize(
    ("function", "path", "text", "found"),
    [
        (test_tuning.test_huge_pages, "sys/kernel/mm/transparent_hugepage/enabled",
         "[always] madvise never", "always"),
        (test_tuning.test_zram_swap, "proc/swaps",
         "Filename Type\n/dev/zram0 partition 1999996 0 100", "0 MiB"),
        (test_tuning.test_zram_swap, "proc/swaps",
         "Filename Type\n/dev/zram1 partition 999996 0 100", "976 MiB"),
        (test_tuning.test_access_times, "proc/self/mounts",
         "/dev/sda2 / ext4 rw,noatime 0 0\n/dev/sda3 /var ext4 rw,relatime 0 0", "rw,relatime"),
        (test_tuning.test_access_times, "proc/self/mounts", "/dev/sda2 / ext4 rw,noatime 0 0",
         "not mounted"),
    ],
)  # fmt: skip
def test_an_option_that_is_not_in_force_is_named(
    n100: Machine, function: Any, path: str, text: str, found: str
) -> None:
    assert "found" in check(function, n100)
    with pytest.raises(Wrong) as caught:
        check(function, seen(n100, path, text))
    assert caught.value.found == found


def test_a_cpu_that_only_polls_fails(n100: Machine) -> None:
    """intel_idle.max_cstate=1 on an N100 leaves nothing that halts it."""
    for state in ("state1", "state2", "state3"):
        shutil.rmtree(Path(n100.root) / f"{CPU}/cpu2/cpuidle/{state}")
    with pytest.raises(Wrong, match="only polling"):
        check(test_tuning.test_idle_states, n100)


def test_states_that_a_kernel_parameter_took_away_are_no_fault(n100: Machine) -> None:
    for cpu in range(4):
        for state in ("state2", "state3"):
            shutil.rmtree(Path(n100.root) / f"{CPU}/cpu{cpu}/cpuidle/{state}")
    said = check(test_tuning.test_idle_states, n100)
    assert said == {"found": "POLL, C1E on 4 CPUs; 0 states disabled"}


def test_a_preference_that_the_governor_decides_is_as_good(n100: Machine) -> None:
    policy = f"{CPU}/cpufreq/policy1"
    changed = seen(n100, f"{policy}/energy_performance_preference", "balance_power")
    with pytest.raises(Wrong):
        check(test_tuning.test_energy_preference, changed)
    follows = seen(changed, f"{policy}/scaling_driver", "intel_pstate")
    assert "found" in check(test_tuning.test_energy_preference, follows)


@pytest.mark.parametrize("function", [function for function, _, _ in CHANGED])
def test_a_plan_for_what_the_kernel_does_not_offer_fails(tmp_path: Path, function: Any) -> None:
    """Not a silent pass: an empty tree has nothing that is wrong, and nothing that is right."""
    (tmp_path / CPU).mkdir(parents=True)
    bare = Machine(testinfra.get_host("local://"), Login(False, False), str(tmp_path))
    with pytest.raises(Wrong):
        check(function, bare)


def test_what_does_not_apply_is_said_with_the_plans_reason(n100: Machine) -> None:
    for function, key in (
        (test_tuning.test_governor, "governor"),
        (test_tuning.test_energy_preference, "epp"),
        (test_tuning.test_energy_bias, "energy_bias"),
        (test_tuning.test_platform_profile, "platform_profile"),
        (test_tuning.test_huge_pages, "huge_pages"),
        (test_tuning.test_idle_states, "idle_states"),
        (test_tuning.test_zram_swap, "zram"),
        (test_tuning.test_hardware_watchdog, "watchdog"),
        (test_tuning.test_access_times, "noatime"),
    ):
        assert check(function, n100, NOTHING) == {"note": f"why {key}"}
    left = {"reasons": {**NOTHING.reasons, "zram": "none (zram_swap_percent = 0)"}}
    assert check(test_tuning.test_zram_swap, n100, replace(NOTHING, **left)) == {
        "found": "none (zram_swap_percent = 0)"
    }


def test_kernel_parameters_wait_for_a_boot_without_failing(n100: Machine, tmp_path: Path) -> None:
    in_effect = test_boot.test_kernel_parameters_in_effect
    assert check(in_effect, n100) == {"found": "intel_idle.max_cstate=1"}
    (tmp_path / "proc/cmdline").write_text("root=/dev/sda2 quiet\n")
    again = Machine(n100.host, n100.login, n100.root)
    note = "takes effect at the next boot: intel_idle.max_cstate=1"
    assert check(in_effect, again) == {"note": note}
    with pytest.raises(Wrong) as caught:
        check(in_effect, again, reboot=replace(NEVER, when="if_needed"))
    assert "the next rollout reboots it (reboot = if_needed)" in caught.value.text("")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to own folders as root")
def test_a_folder_that_others_can_write_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "engine/releases/b1"
    folder.mkdir(parents=True)
    for name in ("ETC", "STATE", "ROOT"):
        monkeypatch.setattr(test_files, name, str(tmp_path))

    def look() -> None:
        test_files.test_folders_are_closed(
            Machine(testinfra.get_host("local://"), Login(False, False))
        )

    look()
    folder.chmod(0o775)
    with pytest.raises(Wrong) as caught:
        look()
    assert caught.value.found == f"root, mode 775: {folder}/"
    folder.chmod(0o755)
    os.chown(tmp_path / "engine", 65534, 0)
    with pytest.raises(Wrong, match=r"mode 755: .*/engine/"):
        look()


DROP_INS = [
    ("/etc/systemd/system/llama-.service.d/x.conf", None),
    ("/usr/lib/systemd/system/llama-.service.d/x.conf", "the rollout leaves what is there"),
    ("/etc/systemd/system/service.d/x.conf", ""),
]


@pytest.mark.parametrize(("path", "remedy"), DROP_INS)
def test_a_drop_in_that_no_rollout_removes_is_not_promised_to_be(
    path: str, remedy: str | None
) -> None:
    unit = "llama-server.service"
    machine: Any = SimpleNamespace(units={unit: {"DropInPaths": path}}, run=lambda command: "")
    if remedy == "":
        said: list[tuple[str, object]] = []
        test_limits.test_no_overrides(machine, Say(said))
        assert str(dict(said)["note"]).endswith(f"the rollout leaves them: {path}")
        return
    with pytest.raises(Wrong) as caught:
        test_limits.test_no_overrides(machine, Say([]))
    assert caught.value.found == path
    assert caught.value.remedy == (f"remove {path}: {remedy}" if remedy else None)


def test_a_unit_s_drop_ins_by_its_first_words() -> None:
    names = test_limits._drop_in_names("edge-llm-tuning.service")
    assert names == ["edge-llm-tuning.service", "edge-.service", "edge-llm-.service"]
    for name in {name for unit in UNITS for name in test_limits._drop_in_names(unit)}:
        assert f" {name}" in SCRIPT.partition("\noverrides=")[2].partition("; do")[0], name


def test_what_a_login_shell_prints_first_is_not_read() -> None:
    local = testinfra.get_host("local://")
    greets = SimpleNamespace(
        run=lambda command, *args: local.run("printf 'Gr\\374ezi'; " + command, *args)
    )
    machine = Machine(greets, Login(False, False))
    assert machine.run("printf %%s %s", "100% read") == "100% read"
    assert machine.run("echo 5%") == "5%"
    assert machine.run("printf '\\303\\251\\377'") == "\u00e9\ufffd"


AVX2 = {"avx2", "fma", "f16c", "bmi2", "avx", "sse4_2"}
SKYLAKE = AVX2 | {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"}
OURS = {"x64", "haswell", "skylakex", "icelake", "alderlake", "zen4"}
PI5 = {"fp", "asimd", "aes", "crc32", "atomics", "fphp", "asimdhp", "asimdrdm", "asimddp"}


@pytest.mark.parametrize(
    ("arch", "flags", "shipped", "best"),
    [
        ("x86_64", AVX2 | {"avx_vnni"}, OURS, "alderlake"),  # N100
        ("x86_64", AVX2, OURS, "haswell"),  # Ryzen 3500U
        ("x86_64", SKYLAKE | {"avx512_vnni", "avx512vbmi", "avx512_bf16"}, OURS, "zen4"),
        ("x86_64", SKYLAKE | {"avx512_vnni", "avx512vbmi"}, OURS, "icelake"),
        ("x86_64", SKYLAKE | {"avx512_vnni"}, OURS, "skylakex"),
        ("x86_64", {"sse2"}, OURS, "x64"),
        ("aarch64", PI5, {"armv8.0_1", "armv8.2_1", "armv8.2_2", "armv8.6_1"}, "armv8.2_2"),
        ("aarch64", {"fp", "asimd"}, {"armv8.0_1", "armv8.2_1"}, "armv8.0_1"),  # Pi 4
        ("riscv64", {"v"}, {"rv64_v"}, None),
    ],
)
def test_the_best_cpu_variant_that_is_shipped(
    arch: str, flags: set[str], shipped: set[str], best: str | None
) -> None:
    assert cpu_variants.expected(arch, flags, shipped) == best


def engine_with(*libraries: str) -> Any:
    """A machine with zen4's flags whose engine has mapped these of ggml's CPU libraries."""
    flags = " ".join(SKYLAKE | {"avx512_vnni", "avx512vbmi", "avx512_bf16"})
    answers = {
        "uname": "x86_64",
        "grep": f"flags\t\t: {flags}",
        "ls": "\n".join(f"libggml-cpu-{name}.so" for name in OURS),
    }
    maps = "".join(f"7f00 r-xp 0 00:1 9 /r/libggml-cpu-{name}.so\n" for name in libraries)
    return SimpleNamespace(
        engine=SimpleNamespace(pid=1, maps=maps), run=lambda c: answers[c.split()[0]]
    )


@pytest.mark.parametrize("loaded", [["x64"], ["haswell"], [], ["x64", "zen4"]])
def test_an_engine_with_a_slower_cpu_variant_fails(loaded: list[str]) -> None:
    plan: Any = SimpleNamespace(engine=SimpleNamespace(release_id="b1"))
    test_engine.test_cpu_variant(engine_with("zen4"), plan, Say([]))
    with pytest.raises(Wrong):
        test_engine.test_cpu_variant(engine_with(*loaded), plan, Say([]))


def test_socket_tables() -> None:
    table = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1
   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000   990        0 34 1
   2: 0100007F:1F90 0100007F:8294 06 00000000:00000000 03:0000122D 00000000     0        0 0 3
   0: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 5
"""
    found = test_network._listeners(table)
    assert [str(listener) for listener in found] == ["0.0.0.0:8000", "127.0.0.1:8080", "[::1]:22"]
    assert [(listener.uid, listener.inode) for listener in found[:2]] == [
        ("0", "12"),
        ("990", "34"),
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("750ms", 0.75), ("2.250000s", 2.25), ("1s 500ms", 1.5), ("1min 30s", 90), ("infinity", None)],
)
def test_systemds_times(text: str, seconds: float | None) -> None:
    assert test_limits._seconds(text) == seconds


def test_io_weights_as_systemd_converts_them() -> None:
    assert dict(test_limits._io_weights(50)) == {
        "io.weight": 50, "io.bfq.weight": 50, "blkio.bfq.weight": 113, "blkio.weight": 250,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("bits", "note", "fails"),
    [("0x0", None, False), ("0x50000", "under-voltage, throttled", False), ("0x50005", None, True)],
)
def test_throttle_bits(bits: str, note: str | None, *, fails: bool) -> None:
    machine: Any = SimpleNamespace(
        run=lambda _: "Raspberry Pi 5 Model B Rev 1.0",
        try_run=lambda _: (0, f"throttled={bits}", ""),
    )
    said: list[tuple[str, Any]] = []
    if fails:
        with pytest.raises(Wrong, match="under-voltage"):
            test_power.test_is_not_throttled(machine, Say(said))
    else:
        test_power.test_is_not_throttled(machine, Say(said))
        assert (note in said[0][1]) if note else not said


def test_login_as_pyinfra_does() -> None:
    data = {
        "ssh_hostname": "fd00::7", "ssh_port": 2222, "ssh_user": "edge", "ssh_key": "/k y",
        "ssh_known_hosts_file": "/known", "ssh_strict_host_key_checking": "yes", "_sudo": True,
    }  # fmt: skip
    login = Login.of("pi", data)
    words = " ".join(login.arguments("/tmp/x"))
    assert (login.url, login.sudo) == ("ssh://[fd00::7]", True)
    wanted = (
        "Port=2222 User=edge UserKnownHostsFile=/known BatchMode=yes IdentitiesOnly=yes "
        "StrictHostKeyChecking=yes ControlPath=/tmp/x/%C"
    )
    for option in wanted.split():
        assert option in words
    assert "/k y" in login.arguments("/tmp/x")
    assert Login.of("@local", {}).url == "local://"
    assert Login.of("@ssh/box", {}).url == "ssh://box"
    # A socket's path is bounded by the kernel; a deep TMPDIR must not break the run.
    assert "ControlMaster=no" in Login.of("box", {}).arguments("/" + "d" * 90)


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a", {"ssh_password": "x"}, "ssh_key"),
        ("a", {"_sudo_password": "x"}, "NOPASSWD"),
        ("a", {"_doas": True}, "_doas"),
        ("@docker/a", {}, "SSH"),
    ],
)
def test_logins_that_are_not_supported_say_what_to_do(
    name: str, data: dict[str, Any], says: str
) -> None:
    with pytest.raises(LoginError, match=says):
        Login.of(name, data)


def test_a_lost_connection_is_said_once(tmp_path: Path) -> None:
    login = Login.of("127.0.0.1", {"ssh_port": 1, "ssh_user": "nobody"})
    host = testinfra.get_host(login.url, ssh_extra_args=" ".join(login.arguments(str(tmp_path))))
    machine = Machine(host, login)
    with pytest.raises(Lost, match=r"not reached: .*refused"):
        machine.run("true")
    with pytest.raises(Lost, match="see above"):
        machine.run("true")


def down(unit: str) -> Machine:
    """A machine on which everything runs but one service."""
    machine = Machine(testinfra.get_host("local://"), Login(False, False))
    running = {"ActiveState": "active", "UnitFileState": "enabled", "MainPID": "1"}
    stopped = {"ActiveState": "failed", "Result": "oom-kill", "MainPID": "0"}
    machine.__dict__["units"] = {
        each: running | (stopped if each == unit else {"Result": "success"}) for each in UNITS
    }
    return machine


def test_a_service_that_is_down_fails_once_and_what_needs_it_is_not_checked() -> None:
    machine = down(ENGINE)
    with pytest.raises(Wrong) as caught:
        test_services.test_run_and_start_at_boot(machine)
    assert caught.value.found == f"{ENGINE} failed (oom-kill)"
    assert str(caught.value.remedy).startswith(f"journalctl -u {ENGINE}; ")
    with pytest.raises(Down, match=r"^llama-server is failed$"):
        machine.need(PROXY, ENGINE)
    with pytest.raises(Down):
        _ = machine.engine
    machine.need(PROXY)


def test_what_is_not_checked_is_counted_apart_and_is_not_good() -> None:
    tally = report.Tally(held=3, unchecked=["engine is down", "engine is down"])
    assert not tally.good
    assert click.unstyle(report._summary(tally)) == "NOT CHECKED  2 not checked: engine is down"
    tally.failed.append("services: run")
    text = "FAILED  1 of 4 checks: services: run. 2 not checked: engine is down"
    assert click.unstyle(report._summary(tally)) == text
    assert report.Tally(held=3).good


def test_no_answer_is_no_status() -> None:
    assert test_keys.Reply(401, "Bearer", "").words == "status 401"
    reply = test_keys.Reply(0, "ConnectionRefusedError", "")
    assert reply.words == "no connection (ConnectionRefusedError)"


@pytest.mark.parametrize(
    ("status", "kind", "remedy"),
    [
        (401, "authentication_error", "the key in my.key is not in force on this host"),
        (429, "rate_limited", "give verify a key without a rate: the one in my.key"),
        (429, "busy", "the host has as many questions as it takes"),
        (502, "engine_died", "journalctl"),
    ],
)
def test_a_key_at_fault_is_not_blamed_on_the_services(status: int, kind: str, remedy: str) -> None:
    assert test_answers.why_not(status, kind, "my.key").startswith(remedy)
    body = f'{{"error": {{"code": {status}, "type": "{kind}", "message": "why"}}}}'
    assert test_answers._error(body) == (kind, "why")
    assert test_answers._error("<html>") == ("", "<html>")


def test_commands_are_said_as_they_are_typed_at_the_login() -> None:
    remedy = "journalctl -u x on the host; rm /y, systemctl daemon-reload; a farm of alarm "
    wrong = Wrong("a", "b", "systemctl show", remedy)
    typed = "sudo journalctl -u x on the host; sudo rm /y, sudo systemctl daemon-reload; a farm of"
    assert f"to do     {typed} alarm" in wrong.text("heal", sudo=True)
    assert "where     systemctl show\n" in wrong.text("heal", sudo=True)
    assert f"to do     {remedy}" in wrong.text("heal")
    said: list[tuple[str, object]] = []
    Say(said, sudo=True).note("restarted (journalctl -u x)")
    assert said == [("note", "restarted (sudo journalctl -u x)")]


def test_names_of_checks() -> None:
    nodeid = "test_network.py::test_nothing_else_of_ours_listens[@ssh/box[1]]"
    assert report.names(nodeid) == ("@ssh/box[1]", "network: nothing else of ours listens")
