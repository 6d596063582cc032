"""What the lab works out without a host: mirrors, kernel command lines, names."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import apt_sources, fleet, looks, sysctl
from lab.paths import Lab, LabError
from lab.tiers import TIERS, hosts_of

DEB822 = """\
Types: deb
# an address that is not used: http://old.example/debian
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security/
Suites: bookworm-security
Components: main
 contrib

Enabled: no
Types: deb
URIs: http://disabled.example/debian
Suites: bookworm bookworm-updates
Components: main
"""
ONE_LINE = """\
# deb http://old.example/debian bookworm main
deb [arch=amd64 signed-by=/k.gpg] https://vendor.example/linux/debian bookworm stable
deb http://board.example/debian bookworm main
deb http://mirror.example/debian bookworm main contrib # the nearest
deb http://mirror.example/debian bookworm-updates main
deb-src http://source.example/debian bookworm main
deb http://mirror.example/debian-security bookworm-security main
"""
MIRROR_LINES = [
    "deb http://mirror.example/debian trixie main",
    "deb http://mirror.example/debian trixie-updates main",
]


def test_deb822_sources_give_the_mirrors() -> None:
    assert apt_sources.debian_lines("trixie", apt_sources.deb822(DEB822)) == [
        *MIRROR_LINES,
        "deb http://mirror.example/debian-security/ trixie-security main",
    ]


def test_one_line_sources_give_the_mirrors_and_no_vendor() -> None:
    assert apt_sources.debian_lines("trixie", apt_sources.one_line(ONE_LINE)) == [
        *MIRROR_LINES,
        "deb http://mirror.example/debian-security trixie-security main",
    ]


def test_another_distribution_names_no_debian_mirror() -> None:
    ubuntu = ONE_LINE.replace("/debian", "/ubuntu")
    assert apt_sources.debian_lines("trixie", apt_sources.one_line(ubuntu)) == []


def test_disabled_files_are_not_read(tmp_path: Path) -> None:
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (parts / "debian.sources").write_text(DEB822)
    (parts / "vendor.list").write_text("deb http://vendor.example/apt stable main\n")
    (parts / "vendor.list.disabled").write_text("deb http://vendor.example/off stable main\n")
    uris = [source.uri for source in apt_sources.read(tmp_path)]
    assert uris == [
        "http://mirror.example/debian",
        "http://mirror.example/debian-security/",
        "http://vendor.example/apt",
    ]


def test_grub_passes_what_grub_cfg_says(tmp_path: Path) -> None:
    config = tmp_path / looks.GRUB_CFG
    config.parent.mkdir(parents=True)
    config.write_text("menuentry x {\n\tlinux\t/boot/vmlinuz-6 root=UUID=1 ro  quiet a=1 \n}\n")
    assert looks.kernel_cmdline(tmp_path) == "BOOT_IMAGE=/boot/vmlinuz-6 root=UUID=1 ro quiet a=1"


def test_a_pi_passes_the_first_line_of_its_cmdline(tmp_path: Path) -> None:
    file = tmp_path / looks.PI_CMDLINE
    file.parent.mkdir(parents=True)
    file.write_text("root=PARTUUID=1-02 rootwait\nnever=read\n")
    assert looks.kernel_cmdline(tmp_path) == "root=PARTUUID=1-02 rootwait"


def test_classes_take_turns_in_names() -> None:
    classes = hosts_of(TIERS["container"], 5)
    names = fleet.host_names("edge", classes)
    assert names == ["edge-n100", "edge-ryzen", "edge-pi5", "edge-n100-2", "edge-ryzen-2"]


@pytest.mark.parametrize("name", ["", "Edge", "edge-lab", "toolongs", "9lab", "a/b"])
def test_a_bad_lab_name_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_LAB_NAME", name)
    with pytest.raises(LabError, match="EDGE_LAB_NAME"):
        Lab.from_environment()


def test_the_kernel_setting_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = tmp_path / "max_user_instances"
    setting.write_text("128\n")
    monkeypatch.setattr(sysctl, "_SETTING", setting)
    lab = Lab("edge", tmp_path, tmp_path)
    sysctl.raise_for(lab, 3)
    assert setting.read_text() == "128\n"  # three hosts fit
    sysctl.raise_for(lab, 12)
    assert int(setting.read_text()) == 8192
    sysctl.restore(lab)
    assert setting.read_text() == "128\n"
    setting.write_text("256\n")
    sysctl.restore(lab)  # not this lab's any more
    assert setting.read_text() == "256\n"
