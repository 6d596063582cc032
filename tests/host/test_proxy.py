"""The proxy that runs: its process, not its unit file."""

from __future__ import annotations

from checks import Say, expect
from machine import Machine

from edge.plan import ROOT, HostPlan
from edge.render import Rendered


def test_configuration(machine: Machine, rendered: Rendered, say: Say) -> None:
    digest = machine.proxy.environment.get("EDGE_LLM_DIGEST")
    wanted = rendered.digests["chat-proxy"]
    expect(wanted, digest, f"/proc/{machine.proxy.pid}/environ: EDGE_LLM_DIGEST")
    say.found(digest)


def test_release(machine: Machine, plan: HostPlan, say: Say) -> None:
    """Its working directory was resolved when it started."""
    wanted = f"{ROOT}/proxy/releases/{plan.proxy.release_id}"
    expect(wanted, machine.proxy.directory, f"/proc/{machine.proxy.pid}/cwd")
    python = f"{ROOT}/proxy/current/venv/bin/python"
    expect(python, machine.proxy.argv[0], f"/proc/{machine.proxy.pid}/cmdline")
    say.found(plan.proxy.release_id)


def test_user(machine: Machine) -> None:
    account = machine.run("id -u edge-llm")
    where = f"/proc/{machine.proxy.pid}/status: Uid"
    expect([account] * 4, machine.proxy.status["Uid"].split(), where)
