"""Every file that hosts get, for every class and for values that quoting could break."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_proxy.config import Settings as ProxySettings
from chat_proxy.keys import read_keys
from edge_host.secret import FILE as KEY_FILE
from edge_host.wanted import Wanted
from jinja2 import StrictUndefined, UndefinedError, meta

from edge import render as module
from edge.agent import agent_program
from edge.keys import ApiKey
from edge.plan import ROOT, HostPlan
from edge.render import ManagedFile, Rendered, desired_state, differing, render
from edge.survey import FileState
from tests.unit.recorded import planned

TEMPLATES = Path(module.CHECKOUT, "templates")
CLASSES = {
    "n100": ("n100", "n100"),
    "ryzen": ("ryzen-3500u", "ryzen"),
    "pi5": ("pi5-8gb", "pi5"),
    "generic": ("vm-no-cpufreq", ""),
    "numa": ("xeon-2-sockets", ""),
}
AWKWARD = [
    "say \"hi\" to 'them'",
    "100% of $HOME, ${PATH}, %n and %%",
    "back\\slash \\n at the end\\",
    "`touch /tmp/x` $(id)",
    "first\nsecond = 1\n\n# third",
    "\ttabs and  spaces ",
    "你好 👋 grüß",
    "",
]


KEYS = (ApiKey("till", "a" * 64, 60, 1_900_000_000), ApiKey("kiosk", "b" * 64))


def plan_for(name: str, **settings: Any) -> HostPlan:
    survey, group = CLASSES[name]
    if "proxy_listen" in settings:
        settings = {"keys": KEYS, **settings}
    return planned(survey, group, **settings)


def text(rendered: Rendered, name: str) -> str:
    (file,) = (file for file in rendered.all if file.path.endswith(f"/{name}"))
    return file.content.decode()


def unit(content: str) -> dict[str, list[str]]:
    """A unit file's assignments, continued lines joined as systemd joins them."""
    found: dict[str, list[str]] = {}
    lines = [line for line in content.splitlines() if not line.startswith(("#", ";"))]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("["):
            key, equals, value = line.partition("=")
            assert equals, f"no assignment: {line!r}"
            found.setdefault(key.strip(), []).append(value.strip())
    return found


def words(command: str) -> Iterator[str]:
    """ExecStart's arguments as systemd reads them: quotes, C escapes, specifiers, variables."""
    for quoted, bare in re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', command):
        word = quoted or bare
        if quoted:
            word = re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), word)
        assert not re.search(r"%(?!%)", word.replace("%%", "")), f"a specifier in {word!r}"
        assert "$" not in word.replace("$$", ""), f"a variable in {word!r}"
        yield word.replace("%%", "%").replace("$$", "$")


def environment(content: str) -> dict[str, str]:
    """EnvironmentFile= by systemd's own rules (parse_env_file in src/basic/env-file.c)."""
    found: dict[str, str] = {}
    rest = content
    while rest:
        line, _, after = rest.partition("\n")
        if not line.strip() or line.lstrip().startswith(("#", ";")):
            rest = after
            continue
        key, equals, value = rest.partition("=")
        assert equals, f"no assignment: {line!r}"
        if not value.startswith('"'):
            found[key], _, rest = value.partition("\n")
            assert not set(found[key]) & set("\"'\\"), f"needs quotes: {found[key]!r}"
            continue
        taken, position = "", 1
        while value[position] != '"':
            char = value[position]
            if char == "\\":
                position += 1
                char = value[position]
                # Kept with its backslash unless the shell would need the escape.
                char = {"\n": ""}.get(char, char if char in '"\\`$' else "\\" + char)
            taken += char
            position += 1
        found[key], rest = taken, value[position + 1 :].lstrip("\n")
    return found


@pytest.mark.parametrize("listen", ["127.0.0.1", "0.0.0.0", "::", "fe80::1%eth0"])
@pytest.mark.parametrize("name", CLASSES)
def test_every_file_is_rendered_for_every_class(name: str, listen: str) -> None:
    plan = plan_for(name, proxy_listen=listen)
    rendered = render(plan)
    assert rendered.agent.content == agent_program()
    for file in rendered.all:
        assert file.state.owner.startswith("root:")
        if file == rendered.agent:  # no text
            continue
        content = file.content.decode()
        assert content.endswith("\n"), file.path
        if not file.path.startswith(f"{ROOT}/bin/"):
            assert not re.search(r"\{\{|None|True|False", content), file.path
    socket = unit(text(rendered, "chat-proxy.socket"))
    host = f"[{listen}]" if ":" in listen else listen
    assert socket["ListenStream"] == [f"{host.replace('%', '%%')}:8000"]


def test_no_template_is_left_out() -> None:
    """Each is a managed file of some class, or included by one."""
    written = {
        file.path.rsplit("/", 1)[-1]
        for name in CLASSES
        for file in render(plan_for(name, hardware_watchdog_s=30)).all
        if not file.path.startswith(f"{ROOT}/bin/")
    }
    assert len(list(TEMPLATES.glob("*.j2"))) == len(written) + 1  # sandbox.j2 is in two of them


def test_an_undefined_name_is_an_error() -> None:
    environment = module._environment()
    assert environment.undefined is StrictUndefined
    with pytest.raises(UndefinedError):
        environment.from_string("{{ plam.engine }}").render()
    for template in TEMPLATES.glob("*.j2"):
        names = meta.find_undeclared_variables(environment.parse(template.read_text()))
        known = {"plan", "header", "root", "etc", "state", "flags", "listen", "digest",
                 "engine_env", "api_keys", "ordered"}  # fmt: skip
        assert names <= known, template.name


@pytest.mark.parametrize("name", CLASSES)
def test_the_engine_runs_with_the_plans_numbers(name: str) -> None:
    plan = plan_for(name, model_name="my-model")
    rendered = render(plan)
    engine = unit(text(rendered, "llama-server.service"))
    command = list(words(engine["ExecStart"][0]))
    assert command[:5] == [
        f"{ROOT}/engine/current/llama-server", "--model", plan.model.path, "--alias", "my-model"
    ]  # fmt: skip
    assert tuple(command[5:]) == plan.engine.args
    assert engine["CPUQuota"] == [f"{plan.limits.cpu_quota_percent}%"]
    assert engine["CPUAffinity"] == [" ".join(map(str, plan.engine.cpus))]
    assert engine["MemoryMax"] == [str(plan.limits.memory_max)]
    assert engine["MemoryHigh"] == [str(plan.limits.memory_high)]
    assert engine["MemorySwapMax"] == ["0"]
    assert engine["Slice"] == ["edgellm.slice"]
    assert engine["User"] == ["edge-llm"]
    bound = plan.engine.numa_node
    assert engine.get("NUMAMask") == (None if bound is None else [str(bound)])
    assert engine.get("NUMAPolicy") == (None if bound is None else ["bind"])
    slice_ = unit(text(rendered, "edgellm.slice"))
    assert slice_["CPUWeight"] == ["80"]
    assert slice_["IOWeight"] == ["50"]


def test_only_the_machine_with_two_nodes_is_bound_to_one() -> None:
    assert {name for name in CLASSES if plan_for(name).engine.numa_node is not None} == {"numa"}


@pytest.mark.parametrize("name", CLASSES)
def test_tuning_is_what_the_plan_says(name: str) -> None:
    plan = plan_for(name)
    rendered = render(plan)
    lines = [
        line.split("\t")
        for line in text(rendered, "tuning.conf").splitlines()
        if not line.startswith("#")
    ]
    wanted = [["set", k.value, k.path, k.choices] for k in plan.tuning.knobs if k.value]
    assert lines == [*wanted, *[["idle", "1", "-"]] * bool(plan.tuning.idle)]
    journal = unit(text(rendered, "50-edge-llm.conf"))
    assert journal["SystemMaxUse"] == journal["RuntimeMaxUse"] == ["64M"]


def test_an_option_is_in_the_files_only_where_it_is_asked_for() -> None:
    plan = plan_for("n100", transparent_huge_pages="madvise", hardware_watchdog_s=30)
    rendered = render(plan)
    tunables = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"
    assert tunables in unit(text(rendered, "llama-server.service"))["Environment"]
    watchdog = unit(text(rendered, "99-edge-llm.conf"))
    assert watchdog == {"RuntimeWatchdogSec": ["30"]}
    without = render(plan_for("n100"))
    assert tunables not in text(without, "llama-server.service")
    assert module.WATCHDOG_DROP_IN not in {file.path for file in without.all}


@pytest.mark.parametrize("prompt", AWKWARD)
def test_a_prompt_reaches_the_proxy_as_it_was_written(prompt: str) -> None:
    plan = plan_for("n100", system_prompt=prompt)
    values = environment(text(render(plan), "proxy.env"))
    assert values.pop("EDGE_PROXY_SYSTEM_PROMPT") == prompt
    assert values == {
        "EDGE_PROXY_LISTEN": "127.0.0.1",
        "EDGE_PROXY_PORT": "8000",
        "EDGE_PROXY_ENGINE_URL": "http://127.0.0.1:8080",
        "EDGE_PROXY_SLOTS": str(plan.engine.slots),
        "EDGE_PROXY_QUEUE_LIMIT": "32",
        "EDGE_PROXY_CONTEXT_PER_SLOT": "2048",
        "EDGE_PROXY_TEMPERATURE": "0.7",
        "EDGE_PROXY_MAX_TOKENS": "512",
    }


def test_the_proxy_takes_every_variable_that_it_is_given() -> None:
    from chat_proxy.config import Settings

    values = environment(text(render(plan_for("pi5", system_prompt="Be kind.")), "proxy.env"))
    settings = Settings.from_env(values)
    assert (settings.system_prompt, settings.max_tokens) == ("Be kind.", 512)


@pytest.mark.parametrize("awkward", AWKWARD)
def test_a_models_own_words_break_no_unit(awkward: str) -> None:
    plan = plan_for("n100")
    model = replace(plan.model, description=awkward, file_name=f"a {awkward}.gguf", name=awkward)
    engine = unit(text(render(replace(plan, model=model)), "llama-server.service"))
    (description,), (command,) = engine["Description"], engine["ExecStart"]
    assert description.replace("%%", "") == description.replace("%", "")
    found = list(words(command))
    assert found[2] == model.path
    assert found[4] == awkward
    assert tuple(found[5:]) == plan.engine.args


@pytest.mark.parametrize("name", CLASSES)
def test_systemd_takes_the_units(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("this machine has no systemd-analyze")
    plan = plan_for(name, proxy_listen="::")
    model = replace(plan.model, description="100% $x", name='a "b" %n', file_name="m %h.gguf")
    rendered = render(replace(plan, model=model))
    units = []
    for file in (*rendered.services, *rendered.tuning):
        if file.path.startswith("/etc/systemd/system/"):
            # What is started must exist for `verify`; the rest is as hosts get it.
            content = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", file.content.decode(),
                             flags=re.M)  # fmt: skip
            path = tmp_path / file.path.rsplit("/", 1)[-1]
            path.write_text(content)
            units.append(path)
    assert len(units) == 6
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, units)],
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


# As the packages' units say it, which is what could make a cycle with ours.
OTHERS = {
    "tlp.service": ("After=multi-user.target NetworkManager.service", "multi-user"),
    "power-profiles-daemon.service": ("After=tlp.service\nBefore=graphical.target", "graphical"),
    "tuned.service": ("After=systemd-sysctl.service network.target dbus.service", "multi-user"),
    # What systemd-sysv-generator makes of an init script.
    "raspi-config.service": ("After=systemd-udevd.service\nBefore=multi-user.target", "multi-user"),
    "cpufrequtils.service": ("After=loadcpufreq.service\nBefore=multi-user.target", "multi-user"),
    "loadcpufreq.service": ("After=remote-fs.target\nBefore=multi-user.target", "multi-user"),
}


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="this machine has no systemd-analyze"
)
def test_no_cycle_with_what_else_sets_the_governor(tmp_path: Path) -> None:
    def cycles() -> list[str]:
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", "graphical.target"],
            env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin:/bin"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return [line for line in done.stderr.splitlines() if "cycle" in line]

    def add(name: str, content: str, target: str) -> None:
        (tmp_path / name).write_text(content)
        wants = tmp_path / f"{target}.target.wants"
        wants.mkdir(exist_ok=True)
        (wants / name).symlink_to(tmp_path / name)

    for name, (ordering, target) in OTHERS.items():
        add(name, f"[Unit]\n{ordering}\n[Service]\nExecStart=/bin/true\n", target)
    rendered = render(plan_for("n100"))
    for file in (*rendered.services, *rendered.tuning):
        name = file.path.rsplit("/", 1)[-1]
        if name.endswith((".service", ".timer", ".socket")):
            content = file.content.decode()
            content = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", content, flags=re.M)
            add(name, content, "timers" if name.endswith(".timer") else "multi-user")
    assert cycles() == []
    # The same with an order that earlier versions had, so that this is known to see one.
    tuning = tmp_path / "edge-llm-tuning.service"
    tuning.write_text(tuning.read_text().replace("After=", "After=tlp.service "))
    assert cycles()


def test_the_same_plan_gives_the_same_bytes() -> None:
    assert render(plan_for("n100")) == render(plan_for("n100"))


ENGINE, PROXY = "llama-server", "chat-proxy"


@pytest.mark.parametrize(
    ("settings", "restarts"),
    [
        ({"temperature": 0.1}, {PROXY}),
        ({"system_prompt": "Be kind."}, {PROXY}),
        ({"max_tokens": 100}, {PROXY}),
        ({"queue_limit": 1}, {PROXY}),
        ({"cors_origins": ["https://shop.example"]}, {PROXY}),
        ({"keys": KEYS}, {PROXY}),
        ({"model_name": "other"}, {ENGINE}),
        ({"threads": 2}, {ENGINE}),
        ({"cache_ram_mib": 64}, {ENGINE}),
        ({"memory_max_mib": 1500}, {ENGINE}),
        ({"cpu_share_percent": 90}, {ENGINE}),
        # Both must know these.
        ({"slots": 1}, {ENGINE, PROXY}),
        ({"context_per_slot": 1024}, {ENGINE, PROXY}),
        ({"engine_port": 8081}, {ENGINE, PROXY}),
        # systemd takes these without a restart.
        ({"cpu_weight": 90}, set()),
        ({"io_weight": 90}, set()),
        ({"governor": "keep"}, set()),
        ({"journal_max_mib": 32}, set()),
        ({"gate_timeout_s": 60}, set()),
    ],
)  # fmt: skip
def test_a_setting_restarts_what_depends_on_it(
    settings: dict[str, object], restarts: set[str]
) -> None:
    before, after = (render(plan_for("n100", **more)).digests for more in ({}, settings))
    assert {unit for unit in before if before[unit] != after[unit]} == restarts


def test_another_model_restarts_the_engine_alone() -> None:
    plan = plan_for("n100")
    model = replace(plan.model, sha256="f" * 64, file_name="other.gguf", name="other",
                    description="Other Q8_0")  # fmt: skip
    before, after = render(plan), render(replace(plan, model=model))
    assert before.digests[ENGINE] != after.digests[ENGINE]
    assert before.digests[PROXY] == after.digests[PROXY]


@pytest.mark.parametrize(
    ("part", "restarts"), [("engine", ENGINE), ("proxy", PROXY)]
)  # fmt: skip
def test_another_release_behind_the_same_link_restarts_its_service(
    part: str, restarts: str
) -> None:
    plan = plan_for("n100")
    other = replace(plan, **{part: replace(getattr(plan, part), release_id="x")})
    before, after = render(plan), render(other)
    assert {unit for unit in before.digests if before.digests[unit] != after.digests[unit]} == {
        restarts
    }


@pytest.mark.parametrize(
    ("template", "restarts"),
    [
        ("proxy.env.j2", {PROXY}),
        ("chat-proxy.service.j2", {PROXY}),
        ("llama-server.service.j2", {ENGINE}),
        ("sandbox.j2", {ENGINE, PROXY}),
        ("tuning.conf.j2", set()),
    ],
)
def test_an_edited_template_restarts_what_is_made_of_it(
    template: str, restarts: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for("n100")
    before = render(plan).digests
    shutil.copytree(TEMPLATES, tmp_path / "templates")
    with (tmp_path / "templates" / template).open("a") as file:
        file.write("# edited\n")
    monkeypatch.setattr(module, "CHECKOUT", tmp_path)
    module._environment.cache_clear()
    try:
        after = render(plan).digests
    finally:
        module._environment.cache_clear()
    assert {unit for unit in before if before[unit] != after[unit]} == restarts


def test_the_digest_is_in_the_unit_that_it_is_of() -> None:
    rendered = render(plan_for("n100"))
    for service, digest in rendered.digests.items():
        lines = unit(text(rendered, f"{service}.service"))["Environment"]
        assert f"EDGE_LLM_DIGEST={digest}" in lines


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("192.0.2.7", "http://192.0.2.7:8000"),
        ("2001:db8::7", "http://[2001:db8::7]:8000"),
    ],
)
def test_the_host_asks_its_own_proxy_where_it_listens(listen: str, url: str) -> None:
    plan = plan_for("n100", proxy_listen=listen)
    desired = desired_state(plan, render(plan))
    assert desired["proxy_url"] == url
    assert desired["engine_url"] == "http://127.0.0.1:8080"


def test_what_the_agent_is_told_is_what_it_reads() -> None:
    """The agent refuses what it does not understand: its own parser takes this."""
    plan = plan_for("ryzen")
    wanted = Wanted.parse(desired_state(plan, render(plan)))
    assert wanted.slots == plan.engine.slots


def test_files_that_differ_in_content_mode_or_owner_are_found() -> None:
    file = ManagedFile("/etc/x", b"1\n", "640", "root:edge-llm")
    assert differing([file], {"/etc/x": file.state}) == ()
    for other in (
        FileState("0" * 64, "640", "root:edge-llm"),
        FileState(file.state.sha256, "644", "root:edge-llm"),
        FileState(file.state.sha256, "640", "root:root"),
    ):
        assert differing([file], {"/etc/x": other}) == (file,)
    assert differing([file], {}) == (file,)


def test_secrets_are_not_for_everyone() -> None:
    modes = {file.path: file.mode for file in render(plan_for("n100")).all}
    assert modes.pop("/etc/edge-llm/proxy.env") == "640"
    assert {mode for path, mode in modes.items() if "/bin/" not in path} == {"644"}
    assert {mode for path, mode in modes.items() if "/bin/" in path} == {"755"}


def test_changed_keys_restart_nothing() -> None:
    """The proxy reads the file again by itself."""
    one, two = (render(plan_for("n100", keys=keys)) for keys in (KEYS[:1], KEYS))
    assert one.digests == two.digests
    changed = differing(two.all, {file.path: file.state for file in one.all})
    assert [file.path for file in changed] == ["/etc/edge-llm/api-keys"]
    assert (changed[0].mode, changed[0].owner) == ("640", "root:edge-llm")


@pytest.mark.parametrize("keys", [(), KEYS])
def test_the_proxy_reads_what_is_written(tmp_path: Path, keys: tuple[ApiKey, ...]) -> None:
    origins = ["https://shop.example", "http://[::1]:3000"]
    rendered = render(plan_for("n100", keys=keys, cors_origins=origins))
    settings = ProxySettings.from_env(environment(text(rendered, "proxy.env")))
    assert settings.api_keys_file == "/etc/edge-llm/api-keys"
    assert settings.cors_origins == tuple(origins)
    file = tmp_path / "api-keys"
    file.write_text(text(rendered, "api-keys"))
    found = [(key.name, key.sha256.hex(), key.rate_per_minute, key.expires)
             for key in read_keys(file)]  # fmt: skip
    assert found == [(key.name, key.sha256, key.rate_per_minute, key.expires) for key in keys]


def test_without_keys_there_is_no_file_of_them() -> None:
    rendered = render(plan_for("n100"))
    assert not [file for file in rendered.all if file.path.endswith("api-keys")]
    settings = ProxySettings.from_env(environment(text(rendered, "proxy.env")))
    assert (settings.api_keys_file, settings.cors_origins) == ("", ())


def test_both_services_take_the_engines_key_from_its_file() -> None:
    """Without "-": a service that would run without the key must not start."""
    rendered = render(plan_for("n100"))
    for name in ("llama-server.service", "chat-proxy.service"):
        assert KEY_FILE in unit(text(rendered, name))["EnvironmentFile"]
    # The agent makes it; no rollout writes it, nor takes it back.
    assert KEY_FILE not in [file.path for file in rendered.all]


def test_no_page_of_another_site_reads_the_engine() -> None:
    command = unit(text(render(plan_for("n100")), "llama-server.service"))["ExecStart"][0]
    assert "--cors-origins none --no-cors-credentials" in " ".join(words(command))
