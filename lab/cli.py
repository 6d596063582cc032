"""`edge lab …`: throw-away hosts on this machine. Also `python -m lab …`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import click

from lab import fleet
from lab.paths import CHECKOUT, Lab, LabError, cache_root
from lab.progress import say
from lab.tiers import TIERS
from lab.ways_in import login

P = ParamSpec("P")


def _verb(function: Callable[P, None]) -> Callable[P, None]:
    """A command whose LabError becomes one message and exit code 1."""

    @wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except LabError as error:
            raise click.ClickException(str(error)) from error

    return inner


def _as_root() -> None:
    """Go on as root: run this same command by sudo if we are not."""
    if os.geteuid() == 0:
        return
    if not shutil.which("sudo"):
        raise LabError("the lab's hosts need root and there is no sudo here: run this as root")
    say("the lab's hosts (namespaces, mounts, control groups) need root: going on with sudo")
    kept = {name: value for name, value in os.environ.items() if name.startswith("EDGE_LAB_")}
    # Root's cache is not the caller's, who would build everything twice.
    kept["EDGE_LLM_CACHE"] = str(cache_root())
    kept["PYTHONPATH"] = str(CHECKOUT)
    words = [f"{name}={value}" for name, value in kept.items()]
    os.execvp("sudo", ["sudo", "env", *words, sys.executable, "-m", "lab", *_own_arguments()])  # noqa: S606


def _own_arguments() -> list[str]:
    """The words after `lab`, however this was started: `python -m lab …` or `edge lab …`."""
    context = click.get_current_context()
    return [str(context.info_name), *context.meta.get("lab.words", [])]


class _Remembering(click.Command):
    """Keeps a verb's words, to run it once more as root."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["lab.words"] = list(args)
        return super().parse_args(ctx, args)


@click.group(name="lab")
def lab() -> None:
    """Throw-away hosts on this machine, one of each hardware class, reached over SSH."""


@lab.command(cls=_Remembering)
@click.option(
    "--hosts",
    metavar="N|CLASS,…",
    help="How many (classes take turns), or the class of each: n100,ryzen. Default: one of each.",
)
@click.option(
    "--tier",
    type=click.Choice(list(TIERS)),
    default="container",
    show_default=True,
    help="What a host is. container: a systemd container with its own network, disk and limits, up "
    "in seconds. vm: a machine with its own kernel and boot loader, emulated, for what only a boot "
    "can show.",
)
@_verb
def up(hosts: str | None, tier: str) -> None:
    """Bring the lab up: image, hosts, and a small model hub."""
    own, kind = Lab.from_environment(), TIERS[tier]
    asked = _asked(hosts)
    # As the caller, with the caller's pip settings, before anything is done as root.
    kind.model(own)
    _as_root()
    made = fleet.up(own, asked, kind)
    say(f"up: {len(made.hosts)} hosts, model hub at {made.hub.endpoint}")
    say(f"the key of their chats, once they serve: {own.api_key}")
    say("next: pyinfra inventory/lab.py deploy.py -y")
    say("a shell on a host: edge lab ssh NAME · the end: edge lab down")


def _asked(hosts: str | None) -> int | list[str] | None:
    if hosts is None:
        return None
    return int(hosts) if hosts.isdecimal() else hosts.split(",")


@lab.command(cls=_Remembering)
@_verb
def down() -> None:
    """Remove all hosts and everything that the lab made, also after a crash."""
    _as_root()
    fleet.down(Lab.from_environment())
    say("down")


@lab.command()
@_verb
def status() -> None:
    """One line a host: power, SSH, class, address; and the files of keys that let people in."""
    own = Lab.from_environment()
    made = fleet.require(own)
    width = max(len(host.name) for host in made.hosts)
    for host in made.hosts:
        power = "on " if host.powered else "off"
        ssh = "ssh answers" if fleet.answers_ssh(host) else "no ssh"
        click.echo(f"{host.name:{width}}  {power}  {ssh:11}  {host.hardware:5}  {host.address}")
    alive = "on " if made.hub.process.alive else "off"
    click.echo(f"{'model hub':{width}}  {alive}  {made.hub.endpoint}")
    click.echo(f"{'chat key':{width}}  {own.api_key}")
    click.echo(f"{'ssh':{width}}  {login(own)}")


@lab.command(context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@_verb
def ssh(name: str, command: tuple[str, ...]) -> None:
    """A shell on host NAME, or one COMMAND there."""
    own = Lab.from_environment()
    words = fleet.ssh_command(own, fleet.require(own).host(name))
    os.execvp(words[0], [*words, *command])  # noqa: S606


@lab.command(name="power-off", cls=_Remembering)
@click.argument("name")
@_verb
def power_off(name: str) -> None:
    """Cut the power of host NAME, and leave it off."""
    _as_root()
    fleet.power_off(Lab.from_environment(), name)


@lab.command(name="power-on", cls=_Remembering)
@click.argument("name")
@_verb
def power_on(name: str) -> None:
    """Boot host NAME again, from the disk that it had."""
    _as_root()
    fleet.power_on(Lab.from_environment(), name)


@lab.command(name="power-cut", cls=_Remembering)
@click.argument("name")
@_verb
def power_cut(name: str) -> None:
    """Cut the power of host NAME and give it back: it boots again from the disk that it had."""
    _as_root()
    fleet.power_cut(Lab.from_environment(), name)
