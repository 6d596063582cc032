"""Every boot set-up: add, again, another value, remove; byte for byte as before."""

from __future__ import annotations

import shutil
from itertools import zip_longest
from pathlib import Path

import pytest

from edge.boot import BootPlan, plan_boot
from tests.unit.boot.setups import NAMES, STATE, Setup, steps_of

IDLE = ("intel_idle.max_cstate=1", "processor.max_cstate=1")
DEEPER = ("intel_idle.max_cstate=2", "processor.max_cstate=2")
MEMORY = ("cgroup_enable=memory", "cgroup_memory=1")

# What boots each of them, and which files are written there; () is not written, with what is said.
WRITTEN = {
    "debian-12-bios": ("grub", "etc/default/grub.d/99-edge-llm.cfg", "boot/grub/grub.cfg"),
    "debian-13-efi": ("grub", "etc/default/grub.d/99-edge-llm.cfg", "boot/grub/grub.cfg"),
    "debian-13-separate-boot": ("grub", "etc/default/grub.d/99-edge-llm.cfg", "boot/grub/grub.cfg"),
    "ubuntu-24.04-cloud": ("grub", "etc/default/grub.d/99-edge-llm.cfg", "boot/grub/grub.cfg"),
    "ubuntu-22.04-cloud": ("grub", "etc/default/grub.d/99-edge-llm.cfg", "boot/grub/grub.cfg"),
    "ubuntu-22.04-edited-by-hand": (
        "grub", "etc/default/grub.d/99-edge-llm.cfg", "boot/grub/grub.cfg"
    ),
    "debian-12-several-drop-ins": (
        "grub", "etc/default/grub.d/99-edge-llm.cfg", "boot/grub/grub.cfg"
    ),
    "debian-12-other-value": ("grub", "etc/default/grub.d/99-edge-llm.cfg", "boot/grub/grub.cfg"),
    "debian-13-systemd-boot": (
        "systemd-boot",
        "boot/efi/loader/entries/b08dfa6083e7567a1921a715000001fb-6.12.41+deb13-amd64.conf",
        "boot/efi/loader/entries/b08dfa6083e7567a1921a715000001fb-6.12.43+deb13-amd64.conf",
        "etc/kernel/cmdline",
    ),
    "debian-12-systemd-boot-own-cmdline": (
        "systemd-boot",
        "efi/loader/entries/b08dfa6083e7567a1921a715000001fb-6.1.0-27-amd64.conf",
        "efi/loader/entries/b08dfa6083e7567a1921a715000001fb-6.1.0-28-amd64+2-1.conf",
        "etc/kernel/cmdline",
    ),
    "pop-os-22.04": (
        "kernelstub", "boot/efi/loader/entries/Pop_OS-current.conf", "etc/kernelstub/configuration"
    ),
    "raspios-bookworm": ("raspberrypi", "boot/firmware/cmdline.txt"),
    "raspios-trixie": ("raspberrypi", "boot/firmware/cmdline.txt"),
    "raspios-edited-on-windows": ("raspberrypi", "boot/firmware/cmdline.txt"),
    "raspios-no-newline": ("raspberrypi", "boot/firmware/cmdline.txt"),
    "raspios-not-ascii": ("raspberrypi", "boot/firmware/cmdline.txt"),
    "raspios-one-token-set": ("raspberrypi", "boot/firmware/cmdline.txt"),
    "raspios-bullseye-moved": ("raspberrypi", "boot/firmware/cmdline.txt"),
    "ubuntu-24.04-pi": ("raspberrypi", "boot/firmware/cmdline.txt"),
    "armbian-bookworm": ("armbian", "boot/armbianEnv.txt"),
    "armbian-own-extraargs": ("armbian", "boot/armbianEnv.txt"),
    "armbian-no-newline": ("armbian", "boot/armbianEnv.txt"),
    "debian-13-u-boot-menu": (
        "u-boot-menu", "etc/u-boot-menu/conf.d/99-edge-llm.conf", "boot/extlinux/extlinux.conf"
    ),
    "debian-13-u-boot-menu-kernel-cmdline": (
        "u-boot-menu", "etc/kernel/cmdline", "boot/extlinux/extlinux.conf"
    ),
    "radxa-extlinux": ("extlinux", "boot/extlinux/extlinux.conf"),
}  # fmt: skip
# What the operator has set otherwise: (asked for, what stays).
LEFT = {
    "debian-12-other-value": ("processor.max_cstate=1", "processor.max_cstate=5"),
    "debian-12-systemd-boot-own-cmdline": ("processor.max_cstate=1", "processor.max_cstate=3"),
    "radxa-extlinux": ("processor.max_cstate=1", "processor.max_cstate=4"),
}
UNKNOWN = {
    "debian-12-netboot": "GRUB is installed, and did not start this kernel",
    "fedora-42": "grubby --update-kernel=ALL",
    "raspios-u-boot": "U-Boot started it, with a script of its own",
    "raspios-other-command-line": "config.txt makes the firmware read another command line",
    "unified-kernel-image": "a unified kernel image was booted",
    "refind": "the firmware was told of rEFInd 0.14.2",
    "vm-with-its-kernel-from-outside": "none of the files that are known",
}
PROBLEMS = {
    "debian-12-boot-read-only": "/boot is mounted read-only",
    "raspios-read-only": "/boot/firmware is mounted read-only",
    "raspios-full": "/boot/firmware has 100 KiB free and 256 are needed",
    "raspios-two-lines": "/boot/firmware/cmdline.txt is not one line with one root=",
}
OTHERWISE = {
    "debian-12-later-drop-in-hides", "debian-12-provisioned-before", "raspios-provisioned-before",
    "raspios-memory-disabled",
}  # fmt: skip

DF = """#!/bin/sh
echo "Filesystem 1024-blocks Used Available Capacity Mounted on"
case "$2" in */boot/firmware) echo "/dev/mmcblk0p1 522230 522130 100 100% /boot/firmware" ;;
*) echo "/dev/root 60000000 3000000 57000000 5% /" ;; esac
"""


@pytest.fixture
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Setup:
    made = Setup.of(request.param, tmp_path)
    if request.param == "raspios-full":
        made.write("test-tools/df", DF)
        (made.root / "test-tools/df").chmod(0o755)
    return made


def each(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("setup", names, indirect=True)


def asked_of(name: str, values: tuple[str, ...] = IDLE) -> tuple[str, ...]:
    if not name.startswith("raspios"):
        return values
    return MEMORY if values == IDLE else ("cgroup_enable=memory", "cgroup_memory=2")


def changed(before: dict[str, tuple[int, bytes]], after: dict[str, tuple[int, bytes]]) -> set[str]:
    """Files that differ; copies and folders apart."""
    names = {name for name in before | after if before.get(name) != after.get(name)}
    return {n for n in names if not n.endswith(".edge-llm.bak") and (before | after)[n][1]}


def held(setup: Setup, tokens: tuple[str, ...]) -> None:
    """Every kernel would be started with each of the tokens, once."""
    lines = setup.next_boot()
    assert lines
    for line in lines:
        for token in tokens:
            assert line.count(token) == 1, (token, line)


def test_every_tree_is_told_what_to_come_to() -> None:
    assert set(NAMES) == {*WRITTEN, *UNKNOWN, *PROBLEMS, *OTHERWISE}
    assert len(NAMES) >= 20


@each("debian-13-efi", "raspios-bookworm", "pop-os-22.04")
def test_the_whole_survey_tells_the_same(setup: Setup) -> None:
    survey = setup.survey()
    whole = plan_boot(
        IDLE, survey.boot, cmdline=survey.cmdline, dt_model=survey.dt_model, kernel=survey.kernel
    )
    assert whole == setup.plan(*IDLE)


@each(*WRITTEN)
def test_added_again_changed_and_removed(setup: Setup) -> None:
    loader, *files = WRITTEN[setup.name]
    before, asked, other = setup.snapshot(), asked_of(setup.name), asked_of(setup.name, DEEPER)
    theirs_first = setup.next_boot()

    plan = setup.apply(*asked)
    assert plan.loader == loader
    after = setup.snapshot()
    assert changed(before, after) == set(files)
    mine = {name: mode for name, (mode, _) in after.items() if name in before}
    assert mine == {name: before[name][0] for name in mine}
    if setup.name in LEFT:
        left, theirs = LEFT[setup.name]
        assert left not in plan.tokens
        for warning in plan.warnings:
            assert warning.endswith(
                f" sets {theirs}: it is left so; take it out there to have {left}"
            )
            assert warning.split()[0].lstrip("/") in (*files, "etc/default/grub")
        assert plan.warnings
        assert any(theirs in line for line in setup.next_boot())
    else:
        assert plan.warnings == ()
        assert set(plan.tokens) == set(asked)
    held(setup, plan.tokens)

    again = setup.plan(*asked)
    assert not again.changes, again
    assert again.tokens == plan.tokens

    second = setup.apply(*other)
    held(setup, second.tokens)
    for now, was in zip_longest(setup.next_boot(), theirs_first, fillvalue=[]):
        for token in set(asked) - set(other):
            assert now.count(token) == was.count(token)
    assert not setup.plan(*other).changes

    setup.apply()
    assert setup.snapshot() == before
    assert not (setup.root / STATE / "boot.json").exists()
    assert not setup.plan().changes


@each(*WRITTEN)
def test_nothing_asked_for_is_nothing_done(setup: Setup) -> None:
    plan = setup.plan()
    assert not plan.changes
    assert plan.problems == plan.warnings == plan.pending == ()


@each(*UNKNOWN)
def test_what_is_not_known_is_told_and_not_written(setup: Setup) -> None:
    plan = setup.plan(*IDLE)
    assert plan.loader == "unknown"
    assert not plan.changes
    assert plan.tokens == plan.pending == plan.problems == ()
    (warning,) = plan.warnings
    assert UNKNOWN[setup.name] in warning
    assert "add intel_idle.max_cstate=1 processor.max_cstate=1 to the kernel" in warning
    assert setup.plan().warnings == ()


@each("vm-with-its-kernel-from-outside")
def test_what_was_added_by_hand_is_found(setup: Setup) -> None:
    setup.write("proc/cmdline", f"console=ttyS0 root=/dev/vda rw {IDLE[0]}\n")
    (warning,) = setup.plan(*IDLE).warnings
    assert f"add {IDLE[1]} to the kernel" in warning
    setup.write("proc/cmdline", f"console=ttyS0 root=/dev/vda rw {' '.join(IDLE)}\n")
    assert setup.plan(*IDLE).warnings == ()


@each("debian-12-bios")
def test_a_loader_that_is_no_longer_known_keeps_ours(setup: Setup) -> None:
    setup.apply(*IDLE)
    setup.write("proc/cmdline", "root=/dev/nfs ro\n")
    plan = setup.plan()
    assert not plan.changes
    (warning,) = plan.warnings
    assert "take intel_idle.max_cstate=1 processor.max_cstate=1 out of " in warning
    assert "/etc/default/grub.d/99-edge-llm.cfg by hand" in warning


@each(*PROBLEMS)
def test_what_cannot_be_written_is_refused_before(setup: Setup) -> None:
    plan = setup.plan(*asked_of(setup.name))
    assert any(PROBLEMS[setup.name] in problem for problem in plan.problems), plan.problems
    assert setup.plan().problems == ()


@each("debian-12-later-drop-in-hides")
def test_a_later_drop_in_that_would_hide_ours_is_named(setup: Setup) -> None:
    before = setup.snapshot()
    plan = setup.plan(*IDLE)
    (warning,) = plan.warnings
    assert warning.startswith("/etc/default/grub.d/zz-vendor.cfg would hide")
    assert not plan.changes
    assert plan.tokens == plan.pending == ()
    # Mended as the warning says, ours goes in.
    text = setup.file("etc/default/grub.d/zz-vendor.cfg")
    extending = text.replace('"nomod', '"$GRUB_CMDLINE_LINUX_DEFAULT nomod')
    setup.write("etc/default/grub.d/zz-vendor.cfg", extending)
    setup.apply(*IDLE)
    held(setup, IDLE)
    # Made to hide it again, it is taken out, since it would do nothing.
    setup.write("etc/default/grub.d/zz-vendor.cfg", text)
    (setup.root / "usr/sbin/update-grub").unlink()
    grub_cfg = setup.root / "boot/grub/grub.cfg"
    grub_cfg.write_bytes(before["boot/grub/grub.cfg"][1])
    assert setup.apply(*IDLE).tokens == ()
    assert "etc/default/grub.d/99-edge-llm.cfg" not in setup.snapshot()


@each("debian-12-provisioned-before")
def test_a_drop_in_of_the_time_before_the_record(setup: Setup) -> None:
    setup.apply(*IDLE)
    assert not setup.plan(*IDLE).changes
    held(setup, IDLE)
    setup.apply()
    assert not (setup.root / "etc/default/grub.d/99-edge-llm.cfg").exists()
    assert setup.next_boot() == [["root=UUID=3f1c2a9e-6c1d-4f6e-9a53-0d1f6a0d7b11", "ro", "quiet"]]


@each("raspios-provisioned-before")
def test_a_copy_of_the_time_before_the_record(setup: Setup) -> None:
    first = setup.file("boot/firmware/cmdline.txt.edge-llm.bak")
    # Nothing of the line changes; that it is ours is written down.
    before = setup.snapshot()
    setup.apply(*MEMORY)
    assert setup.snapshot() == before
    assert not setup.plan(*MEMORY).changes
    setup.apply()
    assert setup.file("boot/firmware/cmdline.txt") == first
    assert not (setup.root / "boot/firmware/cmdline.txt.edge-llm.bak").exists()


@each("raspios-provisioned-before")
def test_what_changed_since_the_copy_stays(setup: Setup) -> None:
    line = setup.file("boot/firmware/cmdline.txt")
    setup.write("boot/firmware/cmdline.txt", line.replace("rootwait", "rootwait usb.debug=1"))
    setup.apply()
    assert setup.file("boot/firmware/cmdline.txt").endswith(
        "fsck.repair=yes rootwait usb.debug=1\n"
    )


@each("raspios-bookworm", "raspios-edited-on-windows", "raspios-no-newline")
def test_a_copy_of_the_first_state_is_kept(setup: Setup) -> None:
    first = setup.file("boot/firmware/cmdline.txt")
    setup.apply(*MEMORY)
    setup.apply(*asked_of(setup.name, DEEPER))
    assert setup.file("boot/firmware/cmdline.txt.edge-llm.bak") == first
    assert sorted(path.name for path in (setup.root / "boot/firmware").iterdir()) == [
        "cmdline.txt", "cmdline.txt.edge-llm.bak", "config.txt"
    ]  # fmt: skip


@each("ubuntu-22.04-edited-by-hand")
def test_a_main_file_edited_by_hand_is_extended(setup: Setup) -> None:
    (was,) = setup.next_boot()
    setup.apply(*IDLE)
    assert setup.next_boot() == [[*was, *IDLE]]
    assert "+p;" in was


@each("debian-12-several-drop-ins")
def test_what_the_operator_has_set_alike_is_not_set_again(setup: Setup) -> None:
    (was,) = setup.next_boot()
    plan = setup.apply(*IDLE)
    assert setup.next_boot() == [[*was, "processor.max_cstate=1"]]
    assert plan.pending == ("processor.max_cstate=1",)
    # It becomes ours when the operator takes it out.
    (setup.root / "etc/default/grub.d/10-power.cfg").unlink()
    setup.apply(*IDLE)
    held(setup, IDLE)


@each("raspios-memory-disabled")
def test_the_opposite_of_what_is_asked_for_stays(setup: Setup) -> None:
    plan = setup.plan(*MEMORY)
    assert not plan.changes
    said = "\n".join(plan.warnings)
    assert "sets cgroup_disable=memory: it is left so" in said
    assert "sets cgroup_memory=0: it is left so" in said


IN_PLACE = {
    "raspios-trixie": "boot/firmware/cmdline.txt",
    "armbian-own-extraargs": "boot/armbianEnv.txt",
    "radxa-extlinux": "boot/extlinux/extlinux.conf",
}


@each(*IN_PLACE)
def test_what_others_changed_meanwhile_stays(setup: Setup) -> None:
    path = IN_PLACE[setup.name]
    old, new = ("quiet", "loud loglevel=7") if setup.name != "armbian-own-extraargs" else (
        "cma=256M", "cma=128M loglevel=7"
    )  # fmt: skip
    first = setup.file(path)
    assert old in first
    setup.apply(*asked_of(setup.name))
    setup.write(path, setup.file(path).replace(old, new))
    setup.apply()
    assert setup.file(path) == first.replace(old, new)


@each("debian-13-systemd-boot")
def test_an_entry_that_came_later_is_ours_where_it_has_our_tokens(setup: Setup) -> None:
    before = setup.snapshot()
    setup.apply(*IDLE)
    # kernel-install takes the line from /etc/kernel/cmdline for a new kernel.
    folder = "boot/efi/loader/entries"
    name = "b08dfa6083e7567a1921a715000001fb-6.12.43+deb13-amd64.conf"
    newer = setup.file(f"{folder}/{name}").replace("6.12.43", "6.12.50")
    setup.write(f"{folder}/{name.replace('6.12.43', '6.12.50')}", newer)
    assert setup.plan(*IDLE).edits == ()
    setup.apply(*IDLE)
    setup.apply()
    assert not any("max_cstate" in word for line in setup.next_boot() for word in line)
    (setup.root / folder / name.replace("6.12.43", "6.12.50")).unlink()
    assert setup.snapshot() == before


@each("debian-12-systemd-boot-own-cmdline")
def test_an_entry_whose_boots_are_counted_keeps_its_record(setup: Setup) -> None:
    before = setup.snapshot()
    setup.apply(*IDLE)
    folder = setup.root / "efi/loader/entries"
    (old,) = folder.glob("*+2-1.conf")
    old.rename(folder / old.name.replace("+2-1", "+1-2"))
    assert not setup.plan(*IDLE).changes
    setup.apply()
    (new,) = folder.glob("*+1-2.conf")
    new.rename(old)
    assert setup.snapshot() == before


# --- Not what the survey saw, tools that fail, power that goes


@each(
    "debian-12-bios",
    "debian-13-systemd-boot",
    "raspios-bookworm",
    "pop-os-22.04",
    "armbian-bookworm",
)
def test_a_file_that_changed_since_the_survey_is_not_written(setup: Setup) -> None:
    plan = setup.plan(*asked_of(setup.name))
    path = WRITTEN[setup.name][-1] if setup.name != "debian-12-bios" else WRITTEN[setup.name][1]
    setup.write(path, "somebody else's root=x\n")
    before = setup.snapshot()
    done = setup.carry_out(plan)
    assert done.returncode == 1
    assert f"/{path} has " in done.stderr
    assert "nothing was written; run again" in done.stderr
    assert setup.snapshot() == before
    assert not (setup.root / STATE / "boot.json").exists()


@each("debian-12-bios")
def test_a_grub_tool_that_fails_leaves_the_old_file(setup: Setup) -> None:
    old = setup.file("boot/grub/grub.cfg")
    setup.write("grub-mkconfig-fails", "")
    done = setup.carry_out(setup.plan(*IDLE))
    assert done.returncode == 1
    assert "/usr/sbin/grub-mkconfig failed, and /boot/grub/grub.cfg is as it was" in done.stderr
    assert "cannot find a device for /" in done.stderr
    assert setup.file("boot/grub/grub.cfg") == old
    assert [path.name for path in (setup.root / "boot/grub").iterdir()] == ["grub.cfg"]
    (setup.root / "grub-mkconfig-fails").unlink()
    setup.apply(*IDLE)
    held(setup, IDLE)


@each("debian-12-bios")
def test_what_grub_s_tool_makes_is_looked_at(setup: Setup) -> None:
    old = setup.file("boot/grub/grub.cfg")
    # A file that the settings do not show: /etc/default/grub leaves for good.
    main = setup.file("etc/default/grub")
    setup.write("etc/default/grub", main + "\nreadonly GRUB_CMDLINE_LINUX_DEFAULT\n")
    assert setup.carry_out(setup.plan(*IDLE)).returncode == 1
    setup.write("etc/default/grub", main)
    setup.write(
        "usr/sbin/grub-mkconfig",
        setup.file("usr/sbin/grub-mkconfig").replace("$GRUB_CMDLINE_LINUX_DEFAULT\n", "fixed\n"),
    )
    done = setup.carry_out(setup.plan(*IDLE))
    assert done.returncode == 1
    assert "no entry it makes has all of: intel_idle.max_cstate=1" in done.stderr
    assert setup.file("boot/grub/grub.cfg") == old


@each("debian-12-bios")
def test_update_grub_alone_will_do(setup: Setup) -> None:
    tool = setup.root / "usr/sbin/grub-mkconfig"
    tool.rename(setup.root / "usr/sbin/update-grub")
    setup.apply(*IDLE)
    held(setup, IDLE)


@each("raspios-bookworm")
def test_a_link_stays_a_link(setup: Setup) -> None:
    firmware = setup.root / "boot/firmware"
    (firmware / "cmdline.txt").rename(firmware / "real.txt")
    (firmware / "cmdline.txt").symlink_to("real.txt")
    setup.apply(*MEMORY)
    assert (firmware / "cmdline.txt").is_symlink()
    assert MEMORY[0] in setup.file("boot/firmware/real.txt")


@pytest.mark.parametrize("asked", [IDLE, ()])
@each(
    "debian-12-bios",
    "debian-12-systemd-boot-own-cmdline",
    "raspios-bookworm",
    "armbian-bookworm",
    "radxa-extlinux",
)
def test_half_a_file_that_a_run_has_left_goes(setup: Setup, asked: tuple[str, ...]) -> None:
    before = setup.snapshot()
    files = [name for name in WRITTEN[setup.name][1:] if not name.startswith("etc/default")]
    for name in files:
        setup.write(f"{name}.edge-new", "half")
    setup.write(f"{files[0]}.edge-new.new", "half")
    setup.apply(*asked)
    assert not [name for name in setup.snapshot() if ".edge-new" in name]
    assert not setup.plan(*asked).changes
    setup.apply()
    assert setup.snapshot() == before


# One of each way of writing.
@each(
    "debian-12-bios", "debian-13-systemd-boot", "debian-12-systemd-boot-own-cmdline",
    "pop-os-22.04", "raspios-no-newline", "armbian-no-newline", "debian-13-u-boot-menu",
    "debian-13-u-boot-menu-kernel-cmdline", "radxa-extlinux",
)  # fmt: skip
def test_power_that_goes_between_any_two_steps(setup: Setup, tmp_path: Path) -> None:
    """What a run leaves that dies after each of its steps boots, and the next run ends it."""
    before, asked, other = setup.snapshot(), asked_of(setup.name), asked_of(setup.name, DEEPER)
    kept = tmp_path / "kept"

    def dies(*tokens: str) -> None:
        plan: BootPlan = setup.plan(*tokens)
        for until in range(1, len(steps_of(plan))):
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(setup.root, kept, symlinks=True)
            setup.carry_out(plan, until)
            for line in setup.next_boot():
                assert [
                    word for word in line if word.startswith("root=")
                ] or "armbian" in setup.name
            setup.apply(*tokens)
            assert not setup.plan(*tokens).changes, until
            setup.apply()
            assert setup.snapshot() == before, until
            shutil.rmtree(setup.root)
            shutil.copytree(kept, setup.root, symlinks=True)

    dies(*asked)
    setup.apply(*asked)
    dies(*other)
    setup.apply(*other)
    dies()
