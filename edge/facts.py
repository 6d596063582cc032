"""The one fact: `pyinfra INVENTORY fact edge.facts.HostSurvey --json`."""

from __future__ import annotations

from pyinfra.api import FactBase, QuoteString, StringCommand

from edge.render import AGENT
from edge.survey_script import SCRIPT


class HostSurvey(FactBase[str]):
    """The survey script's output as text, for `edge.survey_script.parse`. One exec.

    None where the command failed; what is wrong with the text is the caller's to say, because an
    exception here would end the run for every host.
    """

    def command(self) -> str:
        return SCRIPT

    def process(self, output: list[str]) -> str:
        return "\n".join(output)


class Probe(FactBase[str]):
    """The gate on a host that needs no change: a real completion, streamed on the host itself.

    The agent's JSON as text; its exit status is in the JSON too, so the fact itself never fails.
    """

    def command(self, desired: str) -> StringCommand:
        return StringCommand(
            "printf %s", QuoteString(desired), "|", AGENT, "probe", "2>/dev/null", "|| :"
        )

    def process(self, output: list[str]) -> str:
        return "\n".join(output)
