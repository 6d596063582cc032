"""files/edge-tuning, run for real on a tree of files; systemctl, mount and such are recorded."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from edge.render import CHECKOUT, render
from tests.unit.recorded import planned, survey_of

SCRIPT = CHECKOUT / "files" / "edge-tuning"
SHELLS = [name for name in ("dash", "bash", "busybox") if shutil.which(name)]
CPU = "/sys/devices/system/cpu"
GOVERNORS = "set\tperformance\t/sys/devices/system/cpu/cpufreq/policy[0-9]*/scaling_governor"
GOVERNORS += "\tscaling_available_governors\n"
EPP = "set\tperformance\t/sys/devices/system/cpu/cpufreq/policy[0-9]*/"
EPP += "energy_performance_preference\tenergy_performance_available_preferences\n"

# What a command would change outside of the tree, and what it is asked.
SYSTEMCTL = """#!/bin/sh
# Units are files named after them: "UnitFileState ActiveState".
units=$EDGE_TUNING_ROOT/units
case "$*" in
  "show -P LoadState "*) [ -e "$units/$4" ] && echo loaded || echo not-found; exit ;;
  "show -P UnitFileState "*) read -r file active < "$units/$4"; echo "$file"; exit ;;
  "show -P ActiveState "*) read -r file active < "$units/$4"; echo "$active"; exit ;;
esac
echo "systemctl $*" >> "$EDGE_TUNING_ROOT/calls"
case "$*" in
  "--quiet mask --now "*) echo "masked inactive" > "$units/$4" ;;
  "--quiet disable --now "*) echo "disabled inactive" > "$units/$4" ;;
  "--quiet unmask "*) read -r file active < "$units/$3"
    [ "$file" != masked ] || echo "disabled $active" > "$units/$3" ;;
  "--quiet enable "*) read -r file active < "$units/$3"; echo "enabled $active" > "$units/$3" ;;
  "--no-block start "*) read -r file active < "$units/$3"; echo "$file active" > "$units/$3" ;;
esac
"""
RECORDED = """#!/bin/sh
echo "${0##*/} $*" >> "$EDGE_TUNING_ROOT/calls"
case "${0##*/} $*" in
  "mount -o remount,"*)
    sed -i "s#^\\(/dev/sda2 $3 ext4 rw\\),[a-z]*#\\1,${2#remount,}#" \
      "$EDGE_TUNING_ROOT/proc/self/mounts" ;;
  "swapon "*) echo "$3 partition 1 0 100" >> "$EDGE_TUNING_ROOT/proc/swaps" ;;
  "swapoff "*) sed -i "\\#^$1 #d" "$EDGE_TUNING_ROOT/proc/swaps" ;;
esac
"""


@dataclass(frozen=True)
class Tree:
    """A host as files."""

    root: Path

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def read(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text().strip()

    def conf(self, text: str) -> None:
        self.write("/etc/edge-llm/tuning.conf", text)

    def run(self, verb: str = "apply", shell: str = "sh") -> subprocess.CompletedProcess[str]:
        command = ["busybox", "sh"] if shell == "busybox" else [shell]
        return subprocess.run(
            [*command, str(SCRIPT), verb],
            env={"PATH": f"{self.root}/bin:{os.environ['PATH']}",
                 "EDGE_TUNING_ROOT": str(self.root)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def good(self, verb: str = "apply") -> str:
        done = self.run(verb)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    @property
    def calls(self) -> list[str]:
        file = self.root / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def all(self) -> dict[str, str]:
        """Every file that stands for the kernel's or systemd's state."""
        return {
            str(path.relative_to(self.root)): path.read_text()
            for top in ("sys", "proc", "units")
            for path in (self.root / top).rglob("*")
            if path.is_file()
        }


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Two policies of four CPUs: one with preferences, one whose driver offers less (big.LITTLE);
    CPUs 2 and 3 have idle states of their own."""
    tree = Tree(tmp_path)
    for policy, governors in (("policy0", "performance powersave"), ("policy2", "powersave")):
        folder = f"{CPU}/cpufreq/{policy}"
        tree.write(f"{folder}/scaling_governor", "powersave")
        tree.write(f"{folder}/scaling_available_governors", governors)
    tree.write(f"{CPU}/cpufreq/policy0/energy_performance_preference", "balance_power")
    tree.write(
        f"{CPU}/cpufreq/policy0/energy_performance_available_preferences",
        "default performance balance_power",
    )
    big = [("POLL", 0), ("C1E", 2), ("C6", 195), ("C10", 660)]
    little = [("POLL", 0), ("C1", 1), ("C2", 90), ("C3", 300)]
    for cpu in range(4):
        for index, (name, latency) in enumerate(big if cpu < 2 else little):
            folder = f"{CPU}/cpu{cpu}/cpuidle/state{index}"
            tree.write(f"{folder}/name", name)
            tree.write(f"{folder}/latency", str(latency))
            tree.write(f"{folder}/disable", "0")
    tree.write(f"{CPU}/cpuidle/current_driver", "intel_idle")
    tree.write("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never")
    tree.write("/proc/self/mounts", "/dev/sda2 / ext4 rw,relatime,errors=remount-ro 0 0")
    tree.write("/proc/meminfo", "MemTotal:        4000000 kB")
    tree.write("/proc/swaps", "Filename Type Size Used Priority\n/dev/sda3 partition 998396 0 -2")
    tree.write("/units/tuned.service", "enabled active")
    tree.write("/units/tlp.service", "disabled inactive")
    (tmp_path / "bin").mkdir()
    for name in ("mount", "modprobe", "mkswap", "swapon", "swapoff"):
        (tmp_path / "bin" / name).write_text(RECORDED)
    (tmp_path / "bin" / "systemctl").write_text(SYSTEMCTL)
    for file in (tmp_path / "bin").iterdir():
        file.chmod(0o755)
    (tmp_path / "run").mkdir()
    return tree


def off(tree: Tree) -> list[str]:
    """The idle states that are disabled, as cpu:state."""
    folder = tree.root / CPU.lstrip("/")
    return sorted(
        f"{path.parts[-4].removeprefix('cpu')}:{path.parent.name.removeprefix('state')}"
        for path in folder.glob("cpu*/cpuidle/state*/disable")
        if path.read_text().strip() == "1"
    )


@pytest.mark.parametrize("shell", ["sh", *SHELLS])
def test_it_sets_what_is_offered_and_nothing_the_second_time(tree: Tree, shell: str) -> None:
    tree.conf("# a comment\n" + GOVERNORS + EPP + "idle\t1\t-")
    done = tree.run(shell=shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert tree.read(f"{CPU}/cpufreq/policy0/scaling_governor") == "performance"
    assert tree.read(f"{CPU}/cpufreq/policy2/scaling_governor") == "powersave"
    assert tree.read(f"{CPU}/cpufreq/policy0/energy_performance_preference") == "performance"
    assert off(tree) == ["0:2", "0:3", "1:2", "1:3", "2:2", "2:3", "3:2", "3:3"]
    again = tree.run(shell=shell)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ("1\t-", ["0:2", "0:3", "1:2", "1:3", "2:2", "2:3", "3:2", "3:3"]),
        ("-\t100", ["0:2", "0:3", "1:2", "1:3", "2:3", "3:3"]),
        ("2\t300", ["0:3", "1:3", "2:3", "3:3"]),
        ("-\t300", ["0:3", "1:3"]),
        # State 1 halts the CPU: it stays, however slow it is to wake up.
        ("-\t1", ["0:2", "0:3", "1:2", "1:3", "2:2", "2:3", "3:2", "3:3"]),
        ("9\t-", []),
    ],
)
def test_idle_states_by_index_and_latency_on_each_cpu(
    tree: Tree, bounds: str, expected: list[str]
) -> None:
    tree.conf(f"idle\t{bounds}")
    tree.good()
    assert off(tree) == expected


def test_where_nothing_polls_state_0_is_what_stays(tree: Tree) -> None:
    for cpu in range(4):
        tree.write(f"{CPU}/cpu{cpu}/cpuidle/state0/name", "WFI")
    tree.conf("idle\t-\t1")
    tree.good()
    assert off(tree) == [
        "0:1", "0:2", "0:3", "1:1", "1:2", "1:3", "2:2", "2:3", "3:2", "3:3"
    ]  # fmt: skip


def test_a_limit_that_is_lifted_brings_back_what_was_found(tree: Tree) -> None:
    tree.write(f"{CPU}/cpu3/cpuidle/state3/disable", "1")  # the operator's own doing
    found = tree.all()
    everything = GOVERNORS + EPP + "idle\t1\t-\nmount\tnoatime\t/\nstop\tmask\ttuned.service\n"
    everything += "set\tmadvise\t/sys/kernel/mm/transparent_hugepage/enabled\tenabled\n"
    tree.conf(everything)
    tree.good()
    assert tree.all() != found
    tree.conf(GOVERNORS + "idle\t2\t-")
    tree.good()
    assert tree.read(f"{CPU}/cpufreq/policy0/scaling_governor") == "performance"
    assert tree.read(f"{CPU}/cpufreq/policy0/energy_performance_preference") == "balance_power"
    assert off(tree) == ["0:3", "1:3", "2:3", "3:3"]
    tree.conf("")
    tree.good()
    after = tree.all()
    thp = "sys/kernel/mm/transparent_hugepage/enabled"
    assert after.pop(thp) == "always\n"  # a kernel shows the brackets again
    assert found.pop(thp) == "[always] madvise never\n"
    assert after == found
    assert not (tree.root / "var/lib/edge-llm/tuning-before").exists()


def test_restore_is_the_same_without_touching_the_configuration(tree: Tree) -> None:
    found = tree.all()
    tree.conf(GOVERNORS + EPP + "idle\t1\t-\nstop\tmask\ttuned.service\nmount\tnoatime\t/")
    tree.good()
    tree.good("restore")
    assert tree.all() == found
    assert tree.read("/etc/edge-llm/tuning.conf")
    assert tree.good("restore") == ""


def test_what_was_found_first_is_kept_over_boots(tree: Tree) -> None:
    tree.conf(GOVERNORS + "idle\t1\t-")
    tree.good()
    # A boot: the kernel's own defaults, and the deeper states gone by a kernel parameter.
    tree.write(f"{CPU}/cpufreq/policy0/scaling_governor", "ondemand")
    for cpu in range(4):
        for state in (2, 3):
            shutil.rmtree(tree.root / f"{CPU}/cpu{cpu}/cpuidle/state{state}".lstrip("/"))
    tree.good()
    assert tree.read(f"{CPU}/cpufreq/policy0/scaling_governor") == "performance"
    tree.good("restore")
    assert tree.read(f"{CPU}/cpufreq/policy0/scaling_governor") == "powersave"


def test_the_states_before_a_kernel_parameter_are_kept(tree: Tree) -> None:
    tree.conf("idle\t1\t-")
    tree.good()
    full = tree.read("/var/lib/edge-llm/idle-states")
    assert full.splitlines() == [
        "driver intel_idle", "state 0 0 0 POLL", "state 1 2 0 C1E", "state 2 195 0 C6",
        "state 3 660 0 C10",
    ]  # fmt: skip
    for state in (2, 3):
        shutil.rmtree(tree.root / f"{CPU}/cpu0/cpuidle/state{state}".lstrip("/"))
    tree.good()
    assert tree.read("/var/lib/edge-llm/idle-states") == full
    tree.write(f"{CPU}/cpuidle/current_driver", "acpi_idle")
    tree.good()
    assert tree.read("/var/lib/edge-llm/idle-states").splitlines()[0] == "driver acpi_idle"


def refuse(tree: Tree, path: str) -> None:
    """Writes to this file fail, as a driver's EBUSY does."""
    file = tree.root / path.lstrip("/")
    file.unlink()
    file.symlink_to("/proc/version")


def test_what_cannot_be_set_is_named_and_the_rest_is_done(tree: Tree) -> None:
    refuse(tree, f"{CPU}/cpu1/cpuidle/state2/disable")
    tree.conf("idle\t1\t-\n" + GOVERNORS)
    done = tree.run()
    assert done.returncode == 1
    assert "cpu1/cpuidle/state2/disable: cannot be set to 1" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert off(tree) == ["0:2", "0:3", "1:3", "2:2", "2:3", "3:2", "3:3"]
    assert tree.read(f"{CPU}/cpufreq/policy0/scaling_governor") == "performance"


def test_a_preference_that_the_governor_decides_may_be_refused(tree: Tree) -> None:
    refuse(tree, f"{CPU}/cpufreq/policy0/energy_performance_preference")
    tree.conf(EPP)
    assert tree.run().returncode == 1
    tree.conf(GOVERNORS + EPP)
    assert "leaves it to the governor" in tree.good()


def test_a_rival_is_stopped_recorded_and_brought_back(tree: Tree) -> None:
    tree.write("/units/auto-cpufreq.service", "enabled active")
    tree.conf(
        "stop\tmask\ttuned.service\nstop\tdisable\ttlp.service\nstop\tmask\tnone.service\n"
        "stop\tdisable\tauto-cpufreq.service"
    )
    tree.good()
    assert tree.read("/units/tuned.service") == "masked inactive"
    assert tree.read("/units/auto-cpufreq.service") == "disabled inactive"
    assert tree.read("/units/tlp.service") == "disabled inactive"
    stops = ["systemctl --quiet mask --now tuned.service",
             "systemctl --quiet disable --now auto-cpufreq.service"]  # fmt: skip
    assert tree.calls == stops
    assert tree.good() == ""
    assert tree.calls == stops
    tree.conf("")
    tree.good()
    assert tree.read("/units/tuned.service") == "enabled active"
    assert tree.read("/units/auto-cpufreq.service") == "enabled active"
    assert tree.read("/units/tlp.service") == "disabled inactive"


def with_zram(tree: Tree) -> None:
    tree.write("/sys/class/zram-control/hot_add", "1")
    tree.write("/sys/class/zram-control/hot_remove", "")
    tree.write("/sys/block/zram1/disksize", "0")


def test_zram_is_made_once_resized_and_removed(tree: Tree) -> None:
    with_zram(tree)
    tree.conf("zram\t50")
    tree.good()
    assert tree.read("/sys/block/zram1/disksize") == "2000000K"
    made = ["mkswap /dev/zram1", "swapon -p 100 /dev/zram1"]
    assert tree.calls == made
    assert tree.good() == ""
    assert tree.calls == made
    tree.conf("zram\t25")
    tree.good()
    assert tree.calls == [*made, "swapoff /dev/zram1", *made]
    assert tree.read("/sys/block/zram1/disksize") == "1000000K"
    tree.conf("")
    tree.good()
    assert tree.calls[-1] == "swapoff /dev/zram1"
    assert tree.read("/sys/class/zram-control/hot_remove") == "1"
    assert not (tree.root / "run/edge-llm-zram").exists()


def test_another_zram_stays_alone(tree: Tree) -> None:
    with_zram(tree)
    tree.write("/proc/swaps", "Filename Type\n/dev/zram0 partition 2097136 0 100")
    tree.conf("zram\t50")
    assert "another one, which stays" in tree.good()
    assert tree.calls == []


def test_zram_that_cannot_be_had_is_named(tree: Tree) -> None:
    tree.conf("zram\t50")
    done = tree.run()
    assert done.returncode == 1
    assert "zram: the kernel has none" in done.stderr
    assert tree.calls == ["modprobe zram"]


@pytest.mark.parametrize("arguments", [[], ["stop"], ["--help"]])
def test_another_word_is_no_verb(arguments: list[str]) -> None:
    done = subprocess.run(["sh", str(SCRIPT), *arguments], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "usage: edge-tuning apply | restore\n")


def test_without_a_configuration_nothing_is_touched(tree: Tree) -> None:
    tree.conf(GOVERNORS)
    tree.good()
    (tree.root / "etc/edge-llm/tuning.conf").unlink()
    done = tree.run()
    assert done.returncode == 1
    assert "tuning.conf: cannot be read" in done.stderr
    assert tree.read(f"{CPU}/cpufreq/policy0/scaling_governor") == "performance"


def test_the_whole_configuration_of_a_plan_is_understood(tree: Tree) -> None:
    with_zram(tree)
    plan = planned(
        "n100", "n100", max_exit_latency_us=200, noatime=True, zram_swap_percent=25,
        take_over_power_daemons=True, transparent_huge_pages="madvise",
    )  # fmt: skip
    (conf,) = (f for f in render(plan).tuning if f.path.endswith("tuning.conf"))
    tree.conf(conf.content.decode())
    tree.good()
    assert tree.read("/sys/kernel/mm/transparent_hugepage/enabled") == "madvise"
    assert "noatime" in tree.read("/proc/self/mounts")
    assert off(tree) == ["0:2", "0:3", "1:2", "1:3", "2:2", "2:3", "3:2", "3:3"]
    assert "/dev/zram1" in tree.read("/proc/swaps")
    assert tree.good() == ""


def test_plan_and_script_disable_the_same_states(tree: Tree) -> None:
    """The survey of an N100 as files: what the plan counts is what the script disables."""
    shutil.rmtree(tree.root / CPU.lstrip("/"))
    for state in survey_of("n100").idle_states:
        folder = f"{CPU}/cpu0/cpuidle/state{state.index}"
        for name, value in (("name", state.name), ("latency", state.latency_us), ("disable", 0)):
            tree.write(f"{folder}/{name}", str(value))
    for asked in ({}, {"max_cstate": 3}, {"max_cstate": "keep", "max_exit_latency_us": 260},
                  {"max_cstate": 3, "max_exit_latency_us": 1}):  # fmt: skip
        plan = planned("n100", "n100", **asked)
        (conf,) = (f for f in render(plan).tuning if f.path.endswith("tuning.conf"))
        tree.conf("\n".join(x for x in conf.content.decode().splitlines() if x.startswith("idle")))
        tree.good()
        assert off(tree) == [f"0:{index}" for index in plan.tuning.disabled_idle_states], asked
