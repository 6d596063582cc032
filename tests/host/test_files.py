"""Files, releases and the record of what was last good."""

from __future__ import annotations

import json
import shlex

from checks import Say, Wrong, expect
from machine import Machine

from edge.plan import ETC, ROOT, STATE, HostPlan
from edge.render import Rendered, desired_state
from edge.survey import FileState

MANIFEST = f"{STATE}/manifest.json"


def test_are_as_rendered(machine: Machine, rendered: Rendered, say: Say) -> None:
    """Content, mode and owner of every managed file."""
    paths = " ".join(shlex.quote(file.path) for file in rendered.all)
    out = machine.run(
        f"for f in {paths}; do if [ -f $f ] && [ ! -L $f ]; then "
        'sum=$(sha256sum < $f); echo "${sum%% *} $(stat -c "%a %U:%G" $f) $f"; fi; done'
    )
    found = {}
    for line in out.splitlines():
        sha256, mode, owner, path = line.split(" ", 3)
        found[path] = FileState(sha256, mode, owner)
    for file in rendered.all:
        wanted, here = file.state, found.get(file.path)
        if here is None:
            raise Wrong("a file", "none", file.path)
        expect(f"{wanted.mode} {wanted.owner}", f"{here.mode} {here.owner}", file.path)
        expect(f"sha256 {wanted.sha256[:16]}…", f"sha256 {here.sha256[:16]}…", file.path)
    say.found(f"{len(found)} files")


def test_folders_are_closed(machine: Machine) -> None:
    """Root runs what lies in them, so nobody else may put anything there."""
    out = machine.run(
        f"find -H {ETC} {STATE} {ROOT} {ROOT}/*/ {ROOT}/*/releases/ {ROOT}/*/releases/*/ "
        f"{ROOT}/models/*/ -maxdepth 0 -type d "
        "'(' ! -user root -o -perm /022 ')' -printf '%u, mode %m: %p\\n' 2>/dev/null; :"
    )
    if out:
        raise Wrong("root's, writable by nobody else", out.replace("\n", "; "), "folders")


def test_chosen_releases(machine: Machine, plan: HostPlan, say: Say) -> None:
    for kind, wanted in (("engine", plan.engine.release_id), ("proxy", plan.proxy.release_id)):
        link = f"{ROOT}/{kind}/current"
        expect(f"{ROOT}/{kind}/releases/{wanted}", machine.run("readlink -f %s", link), link)
        if not machine.exists(f"{link}/.complete"):
            raise Wrong("a complete release", "no .complete in it", link)
    say.found(f"{plan.engine.release_id}, {plan.proxy.release_id}")


def test_record_of_what_is_good(machine: Machine, plan: HostPlan, rendered: Rendered) -> None:
    manifest = json.loads(machine.read(MANIFEST))
    wanted = desired_state(plan, rendered)
    for key in ("releases", "model", "digests"):
        expect(wanted[key], manifest.get(key), f"{MANIFEST}: {key}")


def test_secrets_are_private(machine: Machine) -> None:
    """Nobody but root and the service's own account reads what may hold secrets."""
    out = machine.run(
        "find /etc/edge-llm /var/lib/edge-llm/good -type f -perm /o+r "
        "! -name tuning.conf 2>/dev/null; :"
    )
    if out:
        raise Wrong("not readable by others", out.replace("\n", ", "), "/etc/edge-llm")
