"""The model that the engine really uses."""

from __future__ import annotations

from itertools import pairwise

from checks import Say, Wrong, expect
from machine import ENGINE, Machine

from edge.plan import HostPlan

REPLACED = f"systemctl restart {ENGINE} loads the file that is there now"


def test_is_the_planned_file(machine: Machine, plan: HostPlan, say: Say) -> None:
    where = f"/proc/{machine.engine.pid}/maps"
    # Address, permissions, offset, device, inode, then the path with whatever is in it.
    rows = [line.split(None, 5) for line in machine.engine.maps.splitlines()]
    mapped = {row[5] for row in rows if len(row) == 6 and ".gguf" in row[5]}
    if not mapped:
        # An engine may read the file into memory instead; then its arguments are what there is.
        argv = machine.engine.argv
        expect(plan.model.path, dict(pairwise(argv)).get("--model"), where)
        say.note("read into memory, not mapped: known by the engine's arguments")
        return
    if mapped == {f"{plan.model.path} (deleted)"}:
        raise Wrong(plan.model.path, "a file that was there and is replaced", where, REPLACED)
    expect(plan.model.path, ", ".join(sorted(mapped)), where)
    say.found(plan.model.path)


def test_sha256(machine: Machine, plan: HostPlan, say: Say) -> None:
    """Hashed now, on the host: nothing that was recorded is believed."""
    path = plan.model.path
    if not machine.exists(path):
        raise Wrong("a file", "none", path)
    found = machine.run("sha256sum < %s", path).split()[0]
    if found != plan.model.sha256:
        raise Wrong(plan.model.sha256, found, path, _remedy(machine, path))
    say.found(f"{found[:16]}…, {plan.model.size_bytes} bytes")


def _remedy(machine: Machine, path: str) -> str | None:
    """The rollout sends a model again where size or time differ from when it was verified."""
    stamp = f"{path.rpartition('/')[0]}/.verified"
    now = machine.run("stat -c %%s:%%Y %s", path)
    if machine.run("cat %s 2>/dev/null; :", stamp).partition(":")[2] != now:
        return None
    return f"its size and time are the verified file's: remove {stamp}, then run the rollout"
