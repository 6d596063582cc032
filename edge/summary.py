"""How a run ended for each host, and the table that is printed last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console

from edge.access import only_this_host
from edge.plan import HostPlan
from edge.survey import MIB


@dataclass(frozen=True)
class Outcome:
    """What the gate found on a host, or why it was not reached."""

    ok: bool
    reason: str = ""
    restarted: tuple[str, ...] = ()
    rolled_back: bool = False
    serving: bool = False
    journal: tuple[str, ...] = ()
    gate: Mapping[str, Any] = field(default_factory=dict)
    reboot: str = ""
    """What a reboot in this run came to; empty where there was none."""

    @classmethod
    def from_agent(cls, result: Mapping[str, Any]) -> Outcome:
        """From the JSON object that the agent on a host prints."""
        return cls(
            ok=bool(result.get("ok")),
            reason=str(result.get("reason", "")),
            restarted=tuple(result.get("restarted", ())),
            rolled_back=bool(result.get("rolled_back")),
            serving=bool(result.get("serving")),
            journal=tuple(result.get("journal", ())),
            gate=result.get("gate") or {},
        )

    @property
    def failure(self) -> str:
        """Why it failed, and whether the host serves all the same."""
        if not self.rolled_back:
            return self.reason
        serves = "serves again" if self.serving else "does NOT serve"
        return f"{self.reason} (went back to what was last good; {serves})"

    @property
    def speed(self) -> str:
        """First token and tokens a second, as a person reads them."""
        first, rate = self.gate.get("first_token_ms"), self.gate.get("tokens_per_s")
        if first is None or rate is None:
            return "not measured"
        return f"first token {first:.0f} ms, {rate:.1f} tokens/s"


_outcomes: dict[str, Outcome] = {}


def record(host: str, outcome: Outcome) -> None:
    """Remember how a host's gate ended in this process."""
    _outcomes[host] = outcome


def outcome_of(host: str) -> Outcome | None:
    """How a host's gate ended, or None where it was not reached."""
    return _outcomes.get(host)


@dataclass(frozen=True)
class Row:
    """One host at the end of a run. `plan` is None where none could be made."""

    host: str
    address: str
    plan: HostPlan | None
    outcome: Outcome | None
    trouble: str = ""


def print_table(rows: Sequence[Row], console: Console | None = None) -> None:
    """The table that a run ends with: every host, served or not, none left out."""
    console = console or Console(stderr=True)
    width = console.width if console.is_terminal else LOG_WIDTH
    good = [row for row in rows if not row.trouble and row.outcome and row.outcome.ok]
    for table in _tables([_cells(row) for row in good], width):
        _say(console)
        for number, line in enumerate(table):
            _say(console, line, "bold" if number == 0 else "")
    for words, names in _askers(good).items():
        of = "" if len(names) == len(good) else f" {', '.join(names)}"
        _say(console, f"Who may ask{of}: {words}.")
    for row in rows:
        if row in good:
            reboot = row.outcome.reboot if row.outcome else ""
            if row.plan and (words := reboot or row.plan.reboot.says):
                _say(console, f"{row.host}: {words}")
            for warning in row.plan.warnings if row.plan else ():
                _say(console, f"{row.host}: note: {warning}")
        else:
            why = row.trouble or (row.outcome.failure if row.outcome else "") or "see above"
            _say(console, f"{row.host}: FAILED: {why}", "red")
    _say(console, f"{len(good)} of {len(rows)} hosts serve and are as they should be.")


def _askers(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Who may ask, in words, and on which hosts."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.plan:
            found.setdefault(row.plan.reasons["proxy.access"], []).append(row.host)
    return found


LOG_WIDTH = 200  # columns; a log is no terminal
COLUMNS = (
    "HOST", "CLASS", "ENGINE", "CPU", "MODEL", "THREADS", "CONTEXT", "MEMORY", "FIRST TOKEN",
    "TOKENS/S", "ADDRESS",
)  # fmt: skip
# Where they do not fit side by side, several tables follow each other, the first with what a person
# looks for first.
MATTERS_MOST = (
    "ADDRESS", "FIRST TOKEN", "TOKENS/S", "MEMORY", "MODEL", "ENGINE", "CPU", "CLASS", "THREADS",
    "CONTEXT",
)  # fmt: skip


def _say(console: Console, text: str = "", style: str = "") -> None:
    """A line as it is: no markup, no colours of rich's own choice, never cut off."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _tables(cells: Sequence[Mapping[str, str]], width: int) -> list[list[str]]:
    """Lines of one table, or of as many as it takes to keep each within `width`.

    Nothing is shortened: a column that does not fit beside the host's name has a table to itself.
    """
    if not cells:
        return []
    wide = {name: max(len(name), *(cell_len(row[name]) for row in cells)) for name in COLUMNS}

    def total(names: Sequence[str]) -> int:
        return sum(wide[name] + len(GAP) for name in names) - len(GAP)

    groups = [list(COLUMNS)]
    if total(COLUMNS) > width:
        groups = []
        for name in MATTERS_MOST:
            room = (group for group in groups if total([*group, name]) <= width)
            group = next(room, None)
            if group is None:
                groups.append(group := [COLUMNS[0]])
            group.append(name)
    return [
        [
            GAP.join(set_cell_size(line[name], wide[name]) for name in group).rstrip()
            for line in [{name: name for name in COLUMNS}, *cells]
        ]
        for group in groups
    ]


GAP = "  "


def _cells(row: Row) -> dict[str, str]:
    plan, gate = row.plan, row.outcome.gate if row.outcome else {}
    assert plan is not None
    engine = plan.engine
    used, limit = gate.get("memory", {}).get("current"), plan.limits.memory_max
    first, rate = gate.get("first_token_ms"), gate.get("tokens_per_s")
    return {
        "HOST": row.host,
        "CLASS": plan.hardware,
        "ENGINE": f"b{engine.build} ({engine.kind})",
        "CPU": str(gate.get("cpu_variant") or "?"),
        "MODEL": plan.model.name,
        "THREADS": str(engine.threads),
        "CONTEXT": f"{engine.slots} x {engine.context_per_slot}",
        "MEMORY": f"{'?' if used is None else used // MIB} / {limit // MIB} MiB",
        "FIRST TOKEN": "?" if first is None else f"{first:.0f} ms",
        "TOKENS/S": "?" if rate is None else f"{rate:.1f}",
        "ADDRESS": chat_url(row.address, plan.proxy.listen, plan.proxy.port),
    }


def chat_url(address: str, listen: str, port: int) -> str:
    """Where the chat is reached: at the host's address, unless the proxy listens on another."""
    ip = ip_address(listen)
    if not ip.is_unspecified:
        address = listen
    url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
    return f"{url} (on the host)" if only_this_host(listen) else url
