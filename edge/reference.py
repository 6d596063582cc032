"""docs/settings.md, generated from `Settings`: `python -m edge.reference --check | --write`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edge.fleet import CHECKOUT
from edge.settings import HARDWARE_GROUPS, Settings, allowed

PAGE = CHECKOUT / "docs" / "settings.md"
# The first setting of each section, in the order of the declaration.
SECTIONS = {
    "model_source": "Model",
    "engine_source": "Engine",
    "cpu_share_percent": "Limits",
    "proxy_listen": "Proxy",
    "governor": "Operating system",
    "gate_timeout_s": "Rollout",
}
HEAD = f"""# Settings

<!-- Generated from edge/settings.py by `python -m edge.reference --write`. Do not edit. -->

Set these where pyinfra keeps host data: for all hosts in `inventory/group_data/all.py`, for a class
of hardware in `inventory/group_data/{{{",".join(HARDWARE_GROUPS)}}}.py`, for one host beside its
name in `inventory/fleet.py`. The most particular wins.

Every setting of every host is checked before any host is touched; a name that is not listed here,
and is none of pyinfra's (`ssh_user`, `_sudo`, …), is refused. A name of your own begins with `_`.
`edge plan inventory` shows what comes out for each host, and why.
"""


def render() -> str:
    """The page."""
    return "\n".join([HEAD, *_sections()])


def _sections() -> Iterator[str]:
    fields = Settings.model_json_schema()["properties"]
    for key, schema in fields.items():
        if key in SECTIONS:
            yield f"## {SECTIONS[key]}\n"
        yield f"### `{key}`\n\n{schema['description']}\n"
        unit = f"- unit: {schema['unit']}\n" if schema["unit"] else ""
        yield f"- default: `{_literal(schema['default'])}`\n- allowed: {allowed(key)}\n{unit}"


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def main(arguments: list[str]) -> int:
    """Check or write the page; 1 where it is stale, 2 for other arguments."""
    if arguments == ["--write"]:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(render(), encoding="utf-8")
        return 0
    if arguments != ["--check"]:
        print("usage: python -m edge.reference --check | --write", file=sys.stderr)
        return 2
    return check(PAGE)


def check(page: Path) -> int:
    """0 if `page` is what `render` gives, else 1 and a line that says what to do."""
    if page.is_file() and page.read_text(encoding="utf-8") == render():
        return 0
    print(f"{page} is stale: run python -m edge.reference --write", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
