"""How a run ended for each host, and the table that is printed last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

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
    console = console or Console(stderr=True, soft_wrap=True)
    if not console.is_terminal:
        console.width = LOG_WIDTH
    good = [row for row in rows if not row.trouble and row.outcome and row.outcome.ok]
    if good:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in COLUMNS:
            table.add_column(name, no_wrap=True)
        for row in good:
            table.add_row(*_cells(row))
        console.print()
        console.print(table)
    for row in rows:
        if row in good:
            if row.plan and row.plan.tuning.pending_reboot:
                waiting = " ".join(row.plan.tuning.pending_reboot)
                console.print(f"{row.host}: takes effect at the next boot: {waiting}")
            for warning in row.plan.warnings if row.plan else ():
                console.print(f"{row.host}: note: {warning}")
        else:
            why = row.trouble or (row.outcome.failure if row.outcome else "") or "see above"
            console.print(f"{row.host}: FAILED: {why}", style="red", markup=False)
    console.print(f"{len(good)} of {len(rows)} hosts serve and are as they should be.")


LOG_WIDTH = 200  # nothing is cut off in a log
COLUMNS = (
    "HOST", "CLASS", "ENGINE", "CPU", "MODEL", "THREADS", "CONTEXT", "MEMORY", "FIRST TOKEN",
    "TOKENS/S", "ADDRESS",
)  # fmt: skip


def _cells(row: Row) -> list[str]:
    plan, gate = row.plan, row.outcome.gate if row.outcome else {}
    assert plan is not None
    engine = plan.engine
    used, limit = gate.get("memory", {}).get("current"), plan.limits.memory_max
    first, rate = gate.get("first_token_ms"), gate.get("tokens_per_s")
    return [
        row.host,
        plan.hardware,
        f"b{engine.build} ({engine.kind})",
        str(gate.get("cpu_variant") or "?"),
        plan.model.name,
        str(engine.threads),
        f"{engine.slots} x {engine.context_per_slot}",
        f"{'?' if used is None else used // MIB} / {limit // MIB} MiB",
        "?" if first is None else f"{first:.0f} ms",
        "?" if rate is None else f"{rate:.1f}",
        f"http://{row.address}:{plan.proxy.port}",
    ]
