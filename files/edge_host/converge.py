"""What runs becomes what is wanted: links, units, and restarts where there is a reason."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from .paths import KINDS, Paths
from .process import mapped_file_is_gone
from .releases import point
from .result import Failed, say
from .secret import FILE as KEY_FILE
from .secret import ensure_key, has_other_key
from .systemd import Shown, running_digest, show, systemctl
from .units import ENGINE, PROXY, PROXY_FIRST, SOCKET, UNITS
from .wanted import Wanted

STOP_S = 60  # a service may take this long to end the answers that it is giving


def changed_since_start(paths: Paths, properties: dict[str, str], managed: Iterable[str]) -> str:
    """The managed file, if any, that a unit was started without: it is newer than the start."""
    since = "ExecMainStart" if "MainPID" in properties else "ActiveEnter"
    started = int(properties.get(f"{since}TimestampMonotonic") or 0) / 1e6
    # By the monotonic clock: a Pi has no clock of its own and starts services in the past.
    started_at = time.time() - (time.monotonic() - started)
    keys = ("FragmentPath", "DropInPaths", "EnvironmentFiles")
    own = {word for key in keys for word in properties.get(key, "").split()}
    for path in sorted(own.intersection(managed)):
        real = paths.at(path)
        if real.exists() and real.stat().st_mtime > started_at:
            return path
    return ""


def why_restart(paths: Paths, wanted: Wanted, shown: Shown, before: Shown, unit: str) -> str:
    """Why what runs is not what is wanted; "" if it is. `before` is from before the reload."""
    if shown[unit].get("ActiveState") != "active":
        return f"it is {shown[unit].get('ActiveState')}"
    if unit in wanted.digests:
        digest = running_digest(paths, shown, unit)
        if digest != wanted.digests[unit]:
            return f"it runs {digest or 'an unknown configuration'}, not {wanted.digests[unit]}"
    if has_other_key(paths, shown, unit):
        return f"it runs with another key than the one in {KEY_FILE}"
    pid = int(shown[unit].get("MainPID") or 0)
    if unit == ENGINE and mapped_file_is_gone(paths, pid, wanted.model_path):
        return "its model was replaced on the disk"
    if before[unit].get("NeedDaemonReload") == "yes":
        return "its unit was changed on the disk"
    path = changed_since_start(paths, shown[unit], wanted.files)
    return f"{path} was changed after its start" if path else ""


def converge(paths: Paths, wanted: Wanted, restarted: list[str], *, force: bool = False) -> None:
    """Links, units and processes become what is wanted; adds to `restarted`. Raises Failed."""
    ensure_key(paths)
    before = show(paths, *UNITS)
    for kind in KINDS:
        point(paths.current(kind), f"releases/{wanted.releases[kind]}")
    systemctl(paths, "daemon-reload")
    shown = show(paths, *wanted.enable)
    if missing := [u for u in wanted.enable if shown[u].get("UnitFileState") != "enabled"]:
        say(f"enabling {' '.join(missing)}")
        systemctl(paths, "enable", "--quiet", *missing)
    shown = show(paths, *UNITS)
    reasons = {unit: why_restart(paths, wanted, shown, before, unit) for unit in UNITS}
    if force:
        reasons = {**reasons, ENGINE: "going back", PROXY: "going back"}
    if reasons[SOCKET]:
        reasons[PROXY] = reasons[PROXY] or "its socket is restarted"
    # A proxy that has the key waits for an engine that has not yet; one that has not cannot know
    # that its requests are refused for a second only.
    order = PROXY_FIRST if has_other_key(paths, shown, ENGINE) else UNITS
    for unit in (unit for unit in order if reasons[unit]):
        say(f"restarting {unit}: {reasons[unit]}")
        if unit == SOCKET:
            # It cannot be bound anew while the service holds it. Clients are refused meanwhile.
            systemctl(paths, "stop", SOCKET, PROXY, timeout_s=STOP_S + 30)
        with contextlib.suppress(Failed):  # a unit that never failed has nothing to reset
            systemctl(paths, "reset-failed", unit)
        restarted.append(unit)
        try:
            systemctl(paths, "restart", unit, timeout_s=wanted.gate_timeout_s + STOP_S)
        except Failed as error:
            raise Failed(f"{unit} did not start: {error}", unit) from error
