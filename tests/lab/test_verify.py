"""`edge verify` on a real host: it holds after a rollout, and names what was changed by hand.

Each fault must fail exactly the checks that it is about, and the next rollout must heal it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import requests

from edge.fleet import CHECKOUT
from lab import fleet
from tests.lab.own_lab import OwnLab, lab_up
from tests.lab.rollout import data, deploy, environment

pytestmark = [pytest.mark.timeout(900)]

EDGE = Path(sys.executable).with_name("edge")
UNIT = "/etc/systemd/system/llama-server.service"
CPUFREQ = "/sys/devices/system/cpu/cpufreq"
RELOAD = "systemctl daemon-reload"
RESTART = f"{RELOAD}; systemctl restart llama-server.service"
PROXY_ENV, ENGINE_ENV = "/etc/edge-llm/proxy.env", "/etc/edge-llm/engine.env"
# What is asked with the key from its file, where that is another than the one that runs.
KEY_IS_OTHER = {
    "answers: streams on the host",
    "keys: engine refuses without its key",
    "keys: files of keys are closed",
    "keys: proxy asks for keys as planned",
    "keys: services run with the hosts key",
}
LIFT = "mkdir -p {0}; printf '[Service]\\nMemoryMax=infinity\\nMemoryHigh=infinity\\n' > {0}/x.conf"

# What is done by hand, as root on the host; then the checks that must fail, and no others.
FAULTS = {
    "a limit edited in the unit's file": (
        f"sed -i 's/^MemoryMax=.*/MemoryMax=2G/' {UNIT}",
        {"files: are as rendered", "services: systemd has read the files"},
    ),
    "a limit edited, and read by systemd": (
        f"sed -i 's/^CPUQuota=.*/CPUQuota=20%/' {UNIT}; {RELOAD}",
        {
            # The running process keeps its quota until it is restarted.
            "files: are as rendered",
            "limits: systemd would set the same",
        },
    ),
    "another model of the same size": (
        "cd /opt/edge-llm/models/*/; m=$(ls *.gguf); cp $m .other; "
        "printf wrong | dd of=.other bs=1 seek=90000000 conv=notrunc status=none; mv .other $m",
        {"model: is the planned file", "model: sha256"},
    ),
    "another model, written over the one that is in use": (
        "printf wrong | dd of=$(ls /opt/edge-llm/models/*/*.gguf) bs=1 seek=90000000 conv=notrunc "
        "status=none",
        {"model: sha256"},
    ),
    "the engine open to the network": (
        f"sed -i 's/--host 127.0.0.1/--host 0.0.0.0/' {UNIT}; {RESTART}",
        {
            "engine: arguments",
            "files: are as rendered",
            "network: engine listens on loopback only",
        },
    ),
    "a drop-in that lifts the memory limit": (
        f"{LIFT.format(UNIT + '.d')}; {RESTART}",
        {
            "limits: engine memory max",
            "limits: no overrides",
            "limits: systemd would set the same",
        },
    ),
    "a drop-in that waits for the next start": (
        LIFT.format(UNIT + ".d"),
        {"limits: no overrides", "services: systemd has read the files"},
    ),
    "a folder of programs that root runs, open to all": (
        "chmod 777 /opt/edge-llm/bin; chown 65534 /opt/edge-llm/engine/releases",
        {"files: folders are closed"},
    ),
    "a drop-in by the first word of the unit's name": (
        f"{LIFT.format('/etc/systemd/system/llama-.service.d')}; {RESTART}",
        {
            "limits: engine memory max",
            "limits: no overrides",
            "limits: systemd would set the same",
        },
    ),
    "a limit changed at run time": (
        "systemctl set-property --runtime llama-server.service MemoryMax=2G",
        {
            "limits: engine memory max",
            "limits: no overrides",
            "limits: systemd would set the same",
        },
    ),
    "the engine open to everybody on the host": (
        f"sed -i '/engine.env/d' {UNIT}; {RESTART}",
        {
            "files: are as rendered",
            "keys: engine refuses without its key",
            "keys: services run with the hosts key",
        },
    ),
    "the proxy open to the network": (
        f"sed -i '/API_KEYS_FILE/d' {PROXY_ENV}; systemctl restart chat-proxy.service",
        {
            "answers: answers over the network",
            "files: are as rendered",
            "keys: a network needs a key",
            "keys: proxy asks for keys as planned",
        },
    ),
    "the engine's key lost": (f"rm {ENGINE_ENV}", KEY_IS_OTHER),
    "another key for the engine, that nothing runs with": (
        f"printf 'LLAMA_API_KEY=%064d\n' 7 > {ENGINE_ENV}",
        KEY_IS_OTHER - {"keys: files of keys are closed"},
    ),
    "the engine's key open to others": (
        f"chmod 644 {ENGINE_ENV}",
        {
            "answers: streams on the host",
            "files: secrets are private",
            "keys: files of keys are closed",
        },
    ),
    "the service's weight changed at run time": (
        "systemctl set-property --runtime edgellm.slice CPUWeight=1000",
        {"limits: cpu weight", "limits: no overrides", "limits: systemd would set the same"},
    ),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnLab]:
    """One provisioned host."""
    with lab_up("v", tmp_path_factory.mktemp("verify"), hosts=1) as own:
        heal(own)
        yield own


def heal(lab: OwnLab) -> None:
    run = deploy(lab)
    assert run.code == 0, run.log


def by_hand(lab: OwnLab, script: str) -> None:
    """Do something as root on the host."""
    lab.ask(lab.host("n100"), f"sudo sh -eu <<'END'\n{script}\nEND\n")


def verify(
    lab: OwnLab, *options: str, inventory: str = "inventory/lab.py"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(EDGE), "verify", inventory, *options],
        cwd=CHECKOUT,
        env=environment(lab),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def failed(run: subprocess.CompletedProcess[str]) -> set[str]:
    """The checks that failed, as they are named in the output."""
    return set(re.findall(r"^\S+  (.*?)  FAILED$", run.stdout, re.MULTILINE))


def expect_green(lab: OwnLab) -> None:
    run = verify(lab)
    assert (run.returncode, failed(run)) == (0, set()), run.stdout + run.stderr


def test_a_rollout_holds_and_reports_say_so(served: OwnLab, tmp_path: Path) -> None:
    junit, html = tmp_path / "junit.xml", tmp_path / "page.html"
    run = verify(served, "-v", "--junit", str(junit), "--html", str(html))
    assert run.returncode == 0, run.stdout + run.stderr
    (host,) = (host.name for host in served.fleet.hosts)
    assert re.search(rf"^{host}  engine: cpus  ok  \([\d,-]+\)$", run.stdout, re.MULTILINE)
    assert re.search(rf"^{host}  tuning: governor  ok  n/a: ", run.stdout, re.MULTILINE)
    assert run.stdout.endswith("s).\n")
    suite = ElementTree.parse(junit).getroot()[0]
    assert suite.get("failures") == suite.get("errors") == suite.get("skipped") == "0"
    assert int(suite.get("tests", "0")) == len(re.findall(r"  ok\b", run.stdout)) - 1
    assert "test_engine.py" in html.read_text()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_healed(served: OwnLab, fault: str) -> None:
    script, checks = FAULTS[fault]
    by_hand(served, script)
    run = verify(served)
    heal(served)
    assert run.returncode == 1, run.stdout + run.stderr
    assert failed(run) == checks, run.stdout
    expect_green(served)


@pytest.mark.parametrize("service", ["llama-server", "chat-proxy"])
def test_a_service_that_is_down_is_said_once(served: OwnLab, service: str) -> None:
    by_hand(served, f"systemctl stop {service}.service")
    run = verify(served, "--key-file", str(served.lab.api_key))
    quiet = verify(served, "--quiet")
    # The proxy's socket still listens; looking must not start what somebody stopped.
    state = served.ask(served.host("n100"), f"systemctl show -P ActiveState {service}.service")
    heal(served)
    assert state == "inactive"
    assert run.returncode == quiet.returncode == 1
    assert failed(run) == failed(quiet) == {"services: run and start at boot"}, run.stdout
    why = f"not checked: {service} is inactive"
    unchecked = len(re.findall(rf"^\S+  .*?  {why}$", run.stdout, re.MULTILINE))
    assert unchecked > 8
    for each in (run, quiet):
        assert f"run and start at boot. {unchecked} {why}\n" in each.stdout
    assert why not in quiet.stdout.partition("\n\n")[0]
    assert run.stdout.index("FAILED") < run.stdout.index("not checked")
    expect_green(served)


@pytest.mark.parametrize(
    ("options", "why", "remedy"),
    [
        ((), "this key is not known here", "is not in force on this host: see `edge key list`"),
        (("--rate", "1"), "may send 1 requests a minute", "give verify a key without a rate"),
    ],
)
def test_a_key_at_fault_is_said_to_be(
    served: OwnLab, tmp_path: Path, options: tuple[str, ...], why: str, remedy: str
) -> None:
    listed, mine = tmp_path / "keys", tmp_path / "verify.key"
    made = [str(EDGE), "key", "new", "verify", "--file", str(listed), *options]
    mine.write_bytes(subprocess.run(made, capture_output=True, check=True).stdout)
    if options:
        assert deploy(served, *data(api_keys_file=str(listed))).code == 0
        url = f"http://{served.host('n100').address}:8000/v1/models"
        headers = {"Authorization": f"Bearer {mine.read_text().strip()}"}
        assert requests.get(url, headers=headers, timeout=60).status_code == 200  # its one
    run = verify(served, "--key-file", str(mine))
    heal(served)
    assert "answers: answers over the network" in failed(run), run.stdout
    found = re.search(r"found +(status .*)\n.*\n +to do +(.*)", run.stdout)
    assert found is not None
    assert why in found[1]
    assert str(mine) in found[2]
    assert remedy in found[2]


def test_a_key_that_got_out_is_found(served: OwnLab) -> None:
    """In a command line, which systemd writes into a unit and the journal, too."""
    key = served.ask(served.host("n100"), f"sudo sed s/.*=// {ENGINE_ENV}")
    by_hand(
        served,
        f"key=$(sed s/.*=// {ENGINE_ENV})\nsystemd-run --quiet --collect --unit=leak --uid=nobody "
        "--setenv=KEY=$key sh -c 'sleep 600; :' $key",
    )
    try:
        run = verify(served)
    finally:
        by_hand(served, f"systemctl stop leak; rm {ENGINE_ENV}")
        heal(served)
    assert failed(run) == {"keys: engines key is nowhere else"}, run.stdout
    assert key not in run.stdout + run.stderr
    found = re.search(r"^ +found +(.*)$", run.stdout, re.MULTILINE)
    assert found is not None
    for place in ("/cmdline", "/environ", "leak.service", "the journal"):
        assert place in found[1]
    expect_green(served)


# The lab's hosts as its inventory has them, but for what its group's data says of access.
ON_LOOPBACK = f"""
import runpy as _runpy
_inventory = _runpy.run_path("{CHECKOUT}/inventory/lab.py")
_data = _runpy.run_path("{CHECKOUT}/inventory/group_data/lab.py")
# Some it sets for machines only.
_names = set(_data["__all__"]) & set(_data) - {{"api_keys_file", "proxy_listen"}}
_own = {{k: _data[k] for k in _names}}
n100 = [(name, {{**data, **_own}}) for name, data in _inventory["n100"]]
"""


def test_loopback_needs_no_key(served: OwnLab, tmp_path: Path) -> None:
    run = deploy(served, *data(proxy_listen="127.0.0.1", api_keys_file=""))
    assert run.code == 0, run.log
    assert "Who may ask: this host only, no keys." in run.log
    inventory = tmp_path / "loopback.py"
    inventory.write_text(ON_LOOPBACK)
    checked = verify(served, "-v", inventory=str(inventory))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "keys: proxy asks for keys as planned  ok  (this host only, no keys)" in checked.stdout
    heal(served)
    expect_green(served)


def test_an_operators_key_streams_over_the_network(served: OwnLab) -> None:
    run = verify(served, "-v", "--key-file", str(served.lab.api_key))
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"answers over the network  ok  \(\d+ events: ", run.stdout)
    assert served.lab.api_key.read_text().strip() not in run.stdout + run.stderr


def test_a_login_shell_that_greets_is_no_matter(served: OwnLab) -> None:
    host = served.host("n100")
    served.ask(
        host,
        "sudo chsh -s /bin/bash $(id -un); touch ~/.bashrc; cp ~/.bashrc ~/.bashrc.was; "
        "printf 'printf \"Welcome to the kiosk\"\\n' | cat - ~/.bashrc.was > ~/.bashrc",
    )
    try:
        assert served.ask(host, "echo there").startswith("Welcome to the kiosk")
        by_hand(served, "rm /opt/edge-llm/models/*/.verified; rm /etc/edge-llm/proxy.env")
        heal(served)
        expect_green(served)
    finally:
        served.ask(host, "mv ~/.bashrc.was ~/.bashrc")


@pytest.fixture
def governed(served: OwnLab) -> Iterator[OwnLab]:
    """The host with a cpufreq policy: a file system of its own over the container's empty one."""
    policy = f"{CPUFREQ}/policy0"
    by_hand(
        served,
        "mount -o remount,bind,rw /sys\n"  # a container's is read-only, a host's is not
        f"mount -t tmpfs none {CPUFREQ}\nmkdir {policy}\ncd {policy}\n"
        "echo intel_cpufreq > scaling_driver\necho powersave > scaling_governor\n"
        "echo performance powersave > scaling_available_governors\n",
    )
    yield served
    by_hand(served, f"umount {CPUFREQ}\nmount -o remount,bind,ro /sys")
    heal(served)


def test_a_governor_changed_by_hand_is_named_and_healed(governed: OwnLab) -> None:
    heal(governed)
    expect_green(governed)
    by_hand(governed, f"echo powersave > {CPUFREQ}/policy0/scaling_governor")
    run = verify(governed)
    assert failed(run) == {"tuning: governor"}, run.stdout
    assert f"{CPUFREQ}/policy0/scaling_governor" in run.stdout
    heal(governed)
    expect_green(governed)


def test_what_cannot_be_checked_is_one_failure(served: OwnLab) -> None:
    name = served.host("n100").name
    fleet.power_off(served.lab, name)
    run = verify(served)
    fleet.power_on(served.lab, name)
    assert run.returncode == 1
    assert failed(run) == {"access: can be checked"}, run.stdout
    assert f"{name}  NOT CHECKED  not reached" in run.stdout
    expect_green(served)  # and the host came back from its power cut as it was
    by_hand(served, "mv /var/lib/edge-llm/manifest.json /root")
    run = verify(served)
    by_hand(served, "mv /root/manifest.json /var/lib/edge-llm")
    assert failed(run) == {"access: can be checked"}, run.stdout
    assert "not provisioned: run pyinfra inventory/lab.py deploy.py" in run.stdout


def test_nobody_selected_is_an_error(served: OwnLab) -> None:
    run = verify(served, "--limit", "nobody")
    assert run.returncode == 1
    assert "--limit nobody matches no host" in run.stderr
    assert run.stdout == ""
