"""An inventory file of hosts that answer the survey with a recorded one (pyinfra's @fake)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.unit.command import closed_port
from tests.unit.recorded import text_of


def write_fleet(
    folder: Path, groups: Mapping[str, Mapping[str, tuple[str, Mapping[str, Any]]]]
) -> str:
    """`groups` maps a group to hosts, a host to (recorded survey or "", its data).

    A host without a survey is one whose SSH port is closed. Gives the inventory's path.
    """
    lines = []
    for group, hosts in groups.items():
        entries: list[tuple[str, dict[str, Any]]] = []
        for name, (recorded, data) in hosts.items():
            own = dict(data)
            if recorded:
                answer = {"@@%s": text_of(recorded)}  # found in the script's text
                own |= {"fake_responses": answer, "fake_delay": 0, "fake_delay_jitter": 0}
            else:
                own |= {"ssh_hostname": "127.0.0.1", "ssh_port": closed_port()}
            entries.append((f"@fake/{name}" if recorded else name, own))
        lines.append(f"{group} = {entries!r}\n")
    path = folder / "boxes.py"
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)
