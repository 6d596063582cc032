"""The engine that runs: its process, not its unit file."""

from __future__ import annotations

import re

from checks import Say, Wrong, expect
from cpu_variants import BASELINES, expected
from machine import ENGINE, Machine

from edge.plan import ROOT, HostPlan
from edge.render import Rendered

RELEASES = f"{ROOT}/engine/releases"


def _flags(argv: tuple[str, ...]) -> dict[str, str]:
    """Options with their values, as `--host 127.0.0.1` and `--metrics` give them."""
    flags: dict[str, str] = {}
    for word in argv[1:]:
        if word.startswith("--"):
            flags[word] = ""
        elif flags:
            flags[list(flags)[-1]] = word
    return flags


def test_arguments(machine: Machine, plan: HostPlan, say: Say) -> None:
    wanted = _flags(("", "--model", plan.model.path, "--alias", plan.model.name, *plan.engine.args))
    found = _flags(machine.engine.argv)
    where = f"/proc/{machine.engine.pid}/cmdline"
    if wrong := [flag for flag in {**wanted, **found} if wanted.get(flag) != found.get(flag)]:

        def words(flags: dict[str, str]) -> str:
            return ", ".join(f"{f} {flags[f]}".strip() if f in flags else f"no {f}" for f in wrong)

        raise Wrong(words(wanted), words(found), where)
    expect(len(wanted) + sum(map(bool, wanted.values())) + 1, len(machine.engine.argv), where)
    say.found(f"{plan.engine.threads} threads, {plan.engine.slots} slots")


def test_cpus(machine: Machine, plan: HostPlan, say: Say) -> None:
    where = f"/proc/{machine.engine.pid}/status: Cpus_allowed_list"
    found = _cpu_list(machine.engine.status["Cpus_allowed_list"])
    expect(sorted(plan.engine.cpus), found, where)
    say.found(machine.engine.status["Cpus_allowed_list"])


def _cpu_list(text: str) -> list[int]:
    """The kernel's "0-2,5" as numbers."""
    ranges = [part.partition("-") for part in text.split(",")]
    return sorted(n for a, _, b in ranges for n in range(int(a), int(b or a) + 1))


def test_configuration(machine: Machine, rendered: Rendered, say: Say) -> None:
    """What it was started with: unit, environment, release and model in one digest."""
    digest = machine.engine.environment.get("EDGE_LLM_DIGEST")
    wanted = rendered.digests["llama-server"]
    expect(wanted, digest, f"/proc/{machine.engine.pid}/environ: EDGE_LLM_DIGEST")
    say.found(digest)


def test_user(machine: Machine) -> None:
    account = machine.run("id -u edge-llm")
    where = f"/proc/{machine.engine.pid}/status: Uid"
    expect([account] * 4, machine.engine.status["Uid"].split(), where)


def test_executable(machine: Machine, plan: HostPlan, say: Say) -> None:
    where = f"/proc/{machine.engine.pid}/exe"
    wanted = f"{RELEASES}/{plan.engine.release_id}/llama-server"
    expect(wanted, machine.engine.executable, where)
    say.found(plan.engine.release_id)


def test_cpu_variant(machine: Machine, plan: HostPlan, say: Say) -> None:
    """The best of ggml's CPU libraries that this host can run; one without SIMD is 20x slower."""
    where = f"/proc/{machine.engine.pid}/maps"
    loaded = sorted(set(re.findall(r"/libggml-cpu-([\w.]+?)\.so", machine.engine.maps)))
    if len(loaded) != 1:
        raise Wrong("one of ggml's CPU libraries", ", ".join(loaded) or "none", where)
    files = machine.run(f"ls {RELEASES}/{plan.engine.release_id}").split()
    shipped = [m[1] for m in map(re.compile(r"libggml-cpu-([\w.]+?)\.so$").match, files) if m]
    line = machine.run("grep -m1 -E '^(flags|Features)' /proc/cpuinfo")
    best = expected(machine.run("uname -m"), line.partition(":")[2].split(), shipped)
    if best is None:
        say.note(f"{loaded[0]}; what this CPU should run is not known here")
        return
    # A libggml newer than our table may have variants that it does not list.
    known = expected(machine.run("uname -m"), line.partition(":")[2].split(), loaded) is not None
    if not known and loaded[0] not in BASELINES:
        say.note(f"{loaded[0]}, a variant that is not known here")
        return
    expect(
        best, loaded[0], where,
        f"journalctl -u {ENGINE} says which libraries could not be loaded; restart it, and if it "
        "stays so, remove the release and run the rollout again",
    )  # fmt: skip
    slow = " (no better one runs on this CPU)" if best in BASELINES else ""
    if slow:
        say.note(best + slow)
    say.found(best)
