"""`edge key`: make, list and revoke API keys. Touches the operator's file and nothing else."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click

from edge import keys
from edge.keys import ApiKey, KeysError

ROLL_OUT = "pyinfra inventory deploy.py"
_FILE = click.Path(dir_okay=False, path_type=Path)
_file_option = click.option(
    "--file", "file", required=True, type=_FILE, help="The file that api_keys_file names."
)


@click.group()
def key() -> None:
    """API keys: who may ask a chat proxy that listens on a network.

    A file holds names and hashes; the key itself is shown once, when it is made. The setting
    api_keys_file names the file, and a rollout puts its hashes on the hosts.
    """


@key.command()
@click.argument("name")
@_file_option
@click.option("--rate", type=click.IntRange(1, keys.MAX_RATE), help="Requests a minute at most.")
@click.option(
    "--expires", type=click.DateTime(["%Y-%m-%d"]), metavar="YYYY-MM-DD", help="Last day, in UTC."
)
def new(name: str, file: Path, rate: int | None, expires: datetime | None) -> None:
    """Make a key called NAME and add its hash to FILE.

    The key is printed to standard output, once; nothing keeps it. FILE is made where it is not
    there.
    """
    last_day = expires.date() if expires else None
    if last_day and last_day < datetime.now(UTC).date():
        raise click.ClickException(f"--expires {last_day} is over already")

    def add(text: str, known: tuple[ApiKey, ...]) -> str:
        if any(each.name == name for each in known):
            raise KeysError(
                f"{file} has a key called {name}; take another name, or first "
                f"`edge key revoke {name} --file {file}`"
            )
        return text + ("" if text.endswith("\n") or not text else "\n") + made.line

    try:
        secret, made = keys.make(name, rate, last_day)
        _change(file, add)
    except (KeysError, OSError) as error:
        raise _refusal(error, file) from None
    click.echo(
        f"{name} is in {file}. Hosts accept it from the next rollout on: {ROLL_OUT}", err=True
    )
    click.echo("The key itself, which is not shown again:", err=True)
    click.echo(secret)


@key.command(name="list")
@_file_option
def list_keys(file: Path) -> None:
    """Show the keys in FILE: name, requests a minute, last day."""
    try:
        known = keys.parse(_read(file), str(file))
    except (KeysError, OSError) as error:
        raise _refusal(error, file) from None
    if not known:
        click.echo(f"{file} holds no key", err=True)
        return
    now = time.time()
    rows = [("NAME", "REQUESTS A MINUTE", "LAST DAY")]
    for each in known:
        rate = str(each.rate_per_minute or "any number")
        over = ", EXPIRED" if each.expired(now) else ""
        rows.append((each.name, rate, f"{each.last_day or 'none'}{over}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


@key.command()
@click.argument("name")
@_file_option
def revoke(name: str, file: Path) -> None:
    """Take the key called NAME out of FILE."""

    def take_out(text: str, known: tuple[ApiKey, ...]) -> str:
        if all(each.name != name for each in known):
            names = ", ".join(each.name for each in known) or "none"
            raise KeysError(f"{file} has no key called {name}; there are: {names}")
        return keys.without(text, name)

    try:
        _read(file)  # not made where it is not there
        _change(file, take_out)
    except (KeysError, OSError) as error:
        raise _refusal(error, file) from None
    click.echo(
        f"{name} is out of {file}. Hosts refuse it from the next rollout on; until then it still "
        f"works: {ROLL_OUT}",
        err=True,
    )


def _refusal(error: KeysError | OSError, file: Path) -> click.ClickException:
    why = f"{error.filename or file}: {error.strerror}" if isinstance(error, OSError) else error
    return click.ClickException(str(why))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise KeysError(
            f"there is no file {file}; `edge key new NAME --file {file}` makes it"
        ) from None
    except UnicodeDecodeError:
        raise KeysError(f"{file} is no text in UTF-8") from None


def _change(file: Path, change: Callable[[str, tuple[ApiKey, ...]], str]) -> None:
    """Replace a file of keys at once; whoever changes it at the same time waits."""
    file = file.resolve()  # a link stays one
    with _locked(file.parent):
        text = _read(file) if file.exists() else ""
        changed = change(text, keys.parse(text, str(file)))
        beside = file.with_name(f".{file.name}.edge-new")
        beside.unlink(missing_ok=True)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
            if file.exists():
                found = file.stat()
                os.fchmod(new.fileno(), found.st_mode & 0o777)
                if os.geteuid() == 0:
                    os.fchown(new.fileno(), found.st_uid, found.st_gid)
            new.write(changed)
            new.flush()
            os.fsync(new.fileno())
        beside.replace(file)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        raise KeysError(f"there is no folder {folder}; make it first") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
