"""The one kernel setting that many hosts need, raised for the lab and put back afterwards."""

from __future__ import annotations

from pathlib import Path

from lab.paths import Lab
from lab.progress import say
from lab.system import write

# Each systemd takes about ten inotify instances of root's 128: the tenth host would not start.
_SETTING = Path("/proc/sys/fs/inotify/max_user_instances")
_FEW_HOSTS = 4
_ENOUGH = 8192


def raise_for(lab: Lab, hosts: int) -> None:
    """Raise fs.inotify.max_user_instances if so many hosts need it, and remember what it was."""
    before = int(_SETTING.read_text())
    if hosts > _FEW_HOSTS and before < _ENOUGH:
        write(_record(lab), f"{before}\n")
        _SETTING.write_text(f"{_ENOUGH}\n")
        say(f"fs.inotify.max_user_instances raised from {before} to {_ENOUGH} until `down`")


def restore(lab: Lab) -> None:
    """Put the setting back if this lab raised it."""
    if _record(lab).exists():
        _SETTING.write_text(_record(lab).read_text())
        _record(lab).unlink()


def _record(lab: Lab) -> Path:
    return lab.state / "inotify-before"
