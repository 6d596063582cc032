"""Which Debian mirror and apt settings this machine itself uses, to use them for the hosts too."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

APT = Path("/etc/apt")
# What must be the same inside: without these apt may not work where it works on this machine.
CARRIED_SETTINGS = (
    "Acquire::Check-Valid-Until",
    "Acquire::Check-Date",
    "Acquire::http::Proxy",
    "Acquire::https::Proxy",
)


@dataclass(frozen=True)
class Source:
    """One repository: its address, the suites and the components asked of it."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]


def read(apt: Path = APT) -> list[Source]:
    """All enabled binary repositories of an apt directory, in both of apt's formats."""
    parts = sorted((apt / "sources.list.d").glob("*"))
    found: list[Source] = []
    for file in [apt / "sources.list", *parts]:
        if file.suffix == ".list" and file.is_file():
            found += one_line(file.read_text())
        elif file.suffix == ".sources" and file.is_file():
            found += deb822(file.read_text())
    return found


def one_line(text: str) -> Iterator[Source]:
    """Sources from the one-line format: deb [options] uri suite component..."""
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)([^#]*)", line)
        if match:
            yield Source(match[1], (match[2],), tuple(match[3].split()))


def deb822(text: str) -> Iterator[Source]:
    """Sources from the deb822 format: stanzas of fields."""
    uncommented = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", uncommented):
        # A continuation line begins with a space and belongs to the field above it.
        joined = re.sub(r"\n[ \t]+", " ", stanza)
        pairs = (line.partition(":") for line in joined.splitlines() if ":" in line)
        fields = {key.strip().lower(): value.split() for key, _, value in pairs}
        if fields.get("enabled", ["yes"])[0].lower() in {"no", "false"}:
            continue
        if "deb" in fields.get("types", []):
            suites = tuple(fields.get("suites", []))
            components = tuple(fields.get("components", []))
            yield from (Source(uri, suites, components) for uri in fields.get("uris", []))


def debian_lines(suite: str, sources: Iterable[Source]) -> list[str]:
    """sources.list lines for a Debian suite from this machine's Debian mirrors.

    Empty where this machine has no Debian mirror (Ubuntu, say): mmdebstrap then knows the default.
    """
    # Vendors too publish under …/debian: only Debian itself has both a "main" and "-updates".
    debian = [s for s in sources if "main" in s.components]
    updated = {s.uri for s in debian if any(name.endswith("-updates") for name in s.suites)}
    mains = [s.uri for s in debian if s.uri.rstrip("/").endswith("/debian") and s.uri in updated]
    securities = [s.uri for s in debian if s.uri.rstrip("/").endswith("/debian-security")]
    if not mains or not mains[0].startswith(("http://", "https://")):
        return []
    main = mains[0]
    lines = [f"deb {main} {suite} main", f"deb {main} {suite}-updates main"]
    if securities:
        lines.append(f"deb {securities[0]} {suite}-security main")
    return lines


def carried_settings() -> list[str]:
    """apt.conf lines for the settings in CARRIED_SETTINGS that this machine has."""
    dump = subprocess.run(
        ["apt-config", "dump", "--format", "%f %v%n", *CARRIED_SETTINGS],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    pairs = (shlex.split(line) for line in dump.splitlines())
    return [
        f'{pair[0]} "{pair[1]}";'
        for pair in pairs
        if len(pair) == 2 and pair[0] in CARRIED_SETTINGS
    ]
