"""The `edge` command. Each subcommand is imported when it is called, so that help is quick."""

from __future__ import annotations

from importlib import import_module

import click

# Name -> where the command is, and its line in `edge --help`.
COMMANDS = {
    "plan": ("edge.plan_command:plan", "Show what each host would run with, and why."),
    "verify": ("edge.verify:verify", "Check that every host is what its plan says."),
    "key": ("edge.key_command:key", "Make, list and revoke API keys of the chat."),
    "lab": ("lab.cli:lab", "Throw-away hosts on this machine, to try a rollout on."),
}


class LazyGroup(click.Group):
    """A group whose commands are modules in `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in the help, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="edge-llm", message="edge-llm %(version)s")
def main() -> None:
    """Small chat models on a fleet of CPU-only devices.

    `pyinfra inventory deploy.py` rolls out; this command does what goes with it. INVENTORY is what
    pyinfra takes: a directory with fleet.py, a file, @local, or hosts separated by commas.
    """
