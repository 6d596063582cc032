"""The one fact: `pyinfra INVENTORY fact edge.facts.HostSurvey --json`."""

from __future__ import annotations

from pyinfra.api.facts import FactBase

from edge.survey import SCRIPT


class HostSurvey(FactBase[str]):
    """The survey script's output as text, for `edge.survey.parse`. One exec.

    None where the command failed; what is wrong with the text is the caller's to say, because an
    exception here would end the run for every host.
    """

    def command(self) -> str:
        return SCRIPT

    def process(self, output: list[str]) -> str:
        return "\n".join(output)
