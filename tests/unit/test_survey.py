"""The survey: the script on this machine, and the parser on recorded machines."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from edge.survey import FileState, Running, Survey
from edge.survey_script import SCRIPT, SurveyError, parse
from tests.unit.recorded import NAMES, survey_of, text_of

SHELLS = [name for name in ("dash", "bash", "busybox") if shutil.which(name)]


def run_script(*shell: str) -> str:
    command = [*shell, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", ["sh", *SHELLS])
def test_the_script_runs_here(shell: str) -> None:
    survey = parse(run_script(*(["busybox", "sh"] if shell == "busybox" else [shell])))
    uname = os.uname()
    assert (survey.arch, survey.kernel) == (uname.machine, uname.release)
    assert survey.page_size == os.sysconf("SC_PAGE_SIZE")
    assert len([cpu for cpu in survey.cpus if cpu.online]) == os.cpu_count()
    assert 1 <= survey.physical_cores <= (os.cpu_count() or 1)
    assert survey.uid == os.getuid()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    assert survey.boot_id == boot_id
    assert survey.disks["/etc"].free_bytes > 0
    assert {"tar", "gzip", "sha256sum"} <= survey.tools


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_the_script_says_what_a_user_could_not_read() -> None:
    # It looks at folders of ours instead of /etc/edge-llm, as nobody.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for closed in ("etc", "state"):
            (folder / closed).mkdir(mode=0o700)
        script = SCRIPT.replace("/etc/edge-llm", f"{folder}/etc").replace(
            "/var/lib/edge-llm", f"{folder}/state"
        )
        (folder / "etc" / "engine.env").write_text("LLAMA_API_KEY=secret")
        (folder / "state" / "manifest.json").write_text('{"format": 1}')

        def survey_as(user: int) -> Survey:
            command = ["sh", "-c", script]
            done = subprocess.run(command, capture_output=True, text=True, check=True, user=user)
            assert done.stderr == ""
            return parse(done.stdout)

        nobody, root = survey_as(65534), survey_as(0)
    assert nobody.uid == 65534
    assert set(nobody.unreadable) == {f"{folder}/state", f"{folder}/etc"}
    assert nobody.installed.manifest is None
    assert root.unreadable == ()
    assert root.installed.manifest == {"format": 1}
    assert list(root.installed.files) == [f"{folder}/etc/engine.env"]


@pytest.mark.parametrize(
    "greeting",
    ["Welcome to the kiosk", "Welcome to the kiosk\\n", "@@user\\n1000", "@@unreadable\\n/x\\n"],
)
def test_what_a_login_shell_prints_first_is_no_part_of_it(greeting: str) -> None:
    command = ["sh", "-c", f"printf '{greeting}'; {SCRIPT}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    survey = parse(done.stdout)
    assert survey.uid == os.getuid()
    assert "/x" not in survey.unreadable


def test_folders_are_listed_with_mode_and_owner(tmp_path: Path) -> None:
    folders = ("bin", "engine/releases/b1", "models/aa")
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder).chmod(0o777)
    script = SCRIPT.replace("/opt/edge-llm", str(tmp_path))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert {f"{tmp_path}/{folder}" for folder in folders} <= set(
        parse(done.stdout).installed.open_folders
    )


def test_drop_ins_by_a_unit_s_first_words_are_seen(tmp_path: Path) -> None:
    made = [
        tmp_path / top / folder / "x.conf"
        for top, folder in (
            ("etc/systemd/system", "llama-.service.d"),
            ("etc/systemd/system", "chat-.socket.d"),
            ("usr/local/lib/systemd/system", "edge-llm-.service.d"),
            ("usr/local/lib/systemd/system", "chat-proxy.service.d"),
        )
    ]
    for path in [*made, tmp_path / "etc/systemd/system/service.d/x.conf"]:
        path.parent.mkdir(parents=True)
        path.write_text("[Service]\nMemoryMax=infinity\n")
    script = SCRIPT
    for top in (" /etc/systemd/system", " /usr/local/lib/systemd/system"):
        assert f"{top} " in script or f"{top};" in script
        script = script.replace(top, f" {tmp_path}{top[1:]}")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    text = done.stdout.replace(str(tmp_path), "")
    assert parse(text).installed.overrides == tuple(
        sorted(f"/{path.relative_to(tmp_path)}" for path in made)
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_survey_is_read(name: str) -> None:
    survey = survey_of(name)
    assert survey.physical_cores >= 1
    assert survey.memory_total > 2**30
    assert survey.glibc is not None
    assert survey.systemd >= 252
    assert survey.init == "systemd"
    assert survey.cgroup_version == 2
    assert survey.disks.keys() >= {"/opt/edge-llm", "/var/lib/edge-llm", "/etc"}


def test_n100() -> None:
    survey = survey_of("n100")
    assert (survey.os_id, survey.os_version, survey.arch) == ("debian", "12", "x86_64")
    assert survey.glibc == (2, 36)
    assert (survey.cpu_vendor, survey.cpu_model) == ("GenuineIntel", "Intel(R) N100")
    assert "avx_vnni" in survey.cpu_flags
    assert [policy.id for policy in survey.cpufreq] == [0, 1, 2, 3]
    policy = survey.cpufreq[0]
    assert (policy.driver, policy.governor) == ("intel_pstate", "powersave")
    assert policy.governors == ("performance", "powersave")
    assert policy.epp == "balance_performance"
    assert "performance" in policy.epps
    assert survey.idle_driver == "intel_idle"
    assert [state.name for state in survey.idle_states] == ["POLL", "C1E", "C6", "C8", "C10"]
    assert [state.latency_us for state in survey.idle_states] == [0, 2, 195, 260, 660]
    (grub,) = survey.boot.grub
    assert grub.path == "/boot/grub/grub.cfg"
    assert grub.entries[0].endswith(" ro quiet")
    assert survey.boot.tools["grub-mkconfig"] == "/usr/sbin/grub-mkconfig"
    assert survey.boot.files["/etc/default/grub"].whole
    assert survey.dmi["product_name"] == "EQ12"
    assert survey.rivals == {}
    assert survey.throttled is None
    assert not survey.is_raspberry_pi
    assert not survey.libgomp
    assert not survey.account
    assert survey.installed.manifest is None
    assert survey.unreadable == ()


def test_smt_siblings_are_one_core() -> None:
    survey = survey_of("ryzen-3500u")
    assert len(survey.cpus) == 8
    assert survey.physical_cores == 4
    assert survey.rivals == {"power-profiles-daemon.service": "active, enabled"}
    assert survey.cpufreq[0].epps == ()
    assert survey_of("ryzen-7840hs").physical_cores == 8
    # cpu10 comes before cpu2 in the shell's order
    assert [cpu.id for cpu in survey_of("ryzen-7840hs").cpus] == list(range(16))


def test_raspberry_pi() -> None:
    survey = survey_of("pi5-4gb")
    assert survey.is_raspberry_pi
    assert survey.dt_model == "Raspberry Pi 5 Model B Rev 1.0"
    assert survey.page_size == 16384
    assert survey.cpu_vendor == "0x41"
    assert "asimddp" in survey.cpu_flags
    assert survey.throttled == 0x50000
    assert survey.cmdline_txt[0] == "console=ttyAMA10,115200"
    mount = survey.boot.mount_of("/boot/firmware/cmdline.txt")
    assert mount is not None
    assert (mount.mount, mount.writable, mount.free_bytes) == ("/boot/firmware", True, 450124 << 10)
    assert "memory" not in survey.cgroup_controllers
    assert (survey.idle_driver, survey.idle_states) == ("none", ())
    assert len(survey.cpufreq) == 1


def test_emulated_numa_nodes_of_a_pi_are_one() -> None:
    survey = survey_of("pi5-8gb")
    assert {cpu.node for cpu in survey.cpus} == {0}
    assert list(survey.node_memory) == [0]
    assert survey.node_memory[0] == pytest.approx(survey.memory_total, rel=0.01)


def test_a_32_bit_userland_is_not_the_kernels_architecture() -> None:
    assert survey_of("pi5-32bit-userland").arch == "aarch64 with a 32-bit userland"


def test_two_sockets() -> None:
    survey = survey_of("xeon-2-sockets")
    assert survey.physical_cores == 12
    assert {cpu.node for cpu in survey.cpus} == {0, 1}
    assert survey.node_memory == {0: 32822520 * 1024, 1: 33018712 * 1024}


def test_minimal_host_lacks_tools() -> None:
    survey = survey_of("minimal")
    assert {"python3", "curl", "sudo"}.isdisjoint(survey.tools)
    assert survey.python == ""


def test_a_provisioned_host() -> None:
    survey = survey_of("provisioned")
    installed = survey.installed
    assert installed.manifest is not None
    assert installed.manifest["engine"] == "b11541-release"
    assert installed.engine_releases == {"b11541-release", "b11312-build-09a7d42b"}
    assert installed.engine_current == "b11541-release"
    assert installed.proxy_current == "p-dcb6d85b0be5"
    qwen, half = installed.models
    assert qwen.verified_sha256 == installed.manifest["model"]
    assert (half.path.rpartition("/")[2], half.verified_sha256) == ("SmolLM2 135M.gguf", "")
    assert installed.files["/etc/edge-llm/engine.env"] == FileState(
        "a" * 64, "640", "root:edge-llm"
    )
    engine = installed.units["llama-server.service"]
    assert (engine["ActiveState"], engine["MemoryMax"]) == ("active", "1199570944")
    assert engine["CPUQuotaPerSecUSec"] == "2.250000s"
    assert installed.units["chat-proxy.service"]["DropInPaths"].endswith("override.conf")
    assert installed.running["llama-server"].pid == 812
    assert len(installed.running["llama-server"].digest) == 64
    assert installed.running["chat-proxy"] == Running(840, "")
    assert survey.account


KEY = f"LLAMA_API_KEY={'0123456789abcdef' * 4}\n"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: the key is root's")
@pytest.mark.parametrize(
    ("content", "mode", "whole"),
    [
        (KEY, 0o600, True),
        (KEY, 0o640, False),
        (KEY[:-2] + "\n", 0o600, False),
        (KEY.upper(), 0o600, False),
        (KEY + KEY, 0o600, False),
        (KEY[:-1], 0o600, False),
        ("", 0o600, False),
        (None, 0, False),
    ],
)
def test_the_engines_key_is_looked_at_and_not_told(
    tmp_path: Path, content: str | None, mode: int, whole: bool
) -> None:
    if content is not None:
        file = tmp_path / "engine.env"
        file.write_text(content)
        file.chmod(mode)
    script = SCRIPT.replace("/etc/edge-llm", str(tmp_path))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert parse(done.stdout).installed.engine_key is whole
    assert "0123456789abcdef" not in done.stdout + done.stderr


def test_a_process_with_another_key_is_told() -> None:
    text = text_of("provisioned").replace(
        "\nchat-proxy 840 -", "\nchat-proxy 840 - stale other-key"
    )
    running = parse(text).installed.running
    assert running["chat-proxy"] == Running(840, "", stale=True, other_key=True)
    assert not running["llama-server"].other_key


def test_a_model_that_changed_since_it_was_verified_is_not_verified() -> None:
    stale = text_of("provisioned").replace(":491400032:1764460800\n", ":491400032:1764460801\n")
    assert parse(stale).installed.models[0].verified_sha256 == ""


def test_units_that_are_not_there_are_left_out() -> None:
    # systemd makes up any slice that it is asked for.
    assert set(survey_of("n100").installed.units) <= {"edgellm.slice"}


@pytest.mark.parametrize("manifest", ["", "{", "[]", '{"format": 99}', "null"])
def test_a_manifest_that_cannot_be_read_is_none(manifest: str) -> None:
    text = text_of("n100").replace("@@manifest\n", f"@@manifest\n{manifest}\n")
    assert parse(text).installed.manifest is None


def test_names_with_line_ends_spoil_nothing() -> None:
    text = text_of("provisioned")
    odd = {
        "releases": "engine b1\nb2\nproxy",
        "models": "5 6 /opt/edge-llm/models/aa/nl\nx.gguf -\n\\",
        "files": f"{'0' * 64} 644 root:root /etc/edge-llm/a\nb c",
    }
    for section, lines in odd.items():
        text = text.replace(f"@@{section}\n", f"@@{section}\n{lines}\n")
    found, was = parse(text).installed, survey_of("provisioned").installed
    assert found.models == was.models
    assert found.engine_releases == was.engine_releases | {"b1"}
    assert found.files.keys() == was.files.keys() | {"/etc/edge-llm/a"}


@pytest.mark.parametrize("keep", [0, 10, 500, 3000])
def test_a_survey_that_is_cut_off_is_refused(keep: int) -> None:
    with pytest.raises(SurveyError, match="incomplete"):
        parse(text_of("n100")[:keep])


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("0 0 0 0 1", "0 0 0 1"),
        ("MemTotal: 7901164", "MemTotal: much"),
        ("@@disk", "@@disc"),
        ("/opt/edge-llm 221087340 / rw", "/opt/edge-llm / rw"),
    ],
)
def test_an_odd_survey_is_an_error_of_that_host_only(good: str, bad: str) -> None:
    text = text_of("n100")
    assert good in text
    with pytest.raises(SurveyError, match="unexpected"):
        parse(text.replace(good, bad, 1))
