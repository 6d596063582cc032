"""Operations: unpack a release that has arrived on a host, try it there, then give it its name."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Sequence

from pyinfra.api import StringCommand, operation

from edge.plan import ROOT


def incoming(kind: str, release_id: str) -> str:
    """Where a release's archive arrives on the host."""
    return f"{ROOT}/{kind}/incoming/{release_id}.tar.gz"


def _begin(kind: str, release_id: str) -> list[str]:
    return [
        "set -eu",
        "umask 022",
        f"archive={shlex.quote(incoming(kind, release_id))}",
        f"release={ROOT}/{kind}/releases/{shlex.quote(release_id)}",
        # One run at a time: the second then finds the release complete.
        f"exec 9>{ROOT}/{kind}/.lock; flock 9",
        'if [ -e "$release/.complete" ]; then rm -f "$archive"; exit 0; fi',
        'new=$release.tmp; rm -rf "$new"; mkdir -p "$new"',
        'tar -xzf "$archive" -C "$new" --no-same-owner',
    ]


# The marker is written when the disk has all files: a release without it was never finished. (`sync
# DIRECTORY` without -f would flush the directory alone, and a power cut leave empty files in it.)
_END = [
    'sync -f "$new"; touch "$new/.complete"; sync "$new/.complete" "$new"',
    'rm -rf "$release"; mv -T "$new" "$release"; sync "${release%/*}"',
    'rm -f "$archive" "${archive%/*}/.verified"',
]


@operation()
def engine(
    release_id: str, flags: Sequence[str], *, needed: bool = True
) -> Generator[StringCommand, None, None]:
    """Unpack an engine and check on the host that it starts and knows every flag we pass."""
    if not needed:
        return
    check = [
        'version=$("$new/llama-server" --version 2>&1) || {',
        '  echo "the engine does not start on this host: $version" >&2; exit 1; }',
        'help=$("$new/llama-server" --help 2>&1)',
        f"for flag in {' '.join(map(shlex.quote, flags))}; do",
        '  printf "%s" "$help" | grep -qE -- "(^|[ ,])$flag([ ,]|\\$)" ||',
        '    { echo "this engine has no flag $flag" >&2; exit 1; }',
        "done",
    ]
    yield StringCommand("\n".join([*_begin("engine", release_id), *check, *_END]))


@operation()
def proxy(release_id: str, *, needed: bool = True) -> Generator[StringCommand, None, None]:
    """Unpack a proxy, make its own environment from the wheels that came along, and import it.

    pip runs from its wheel, so that the host needs neither pip nor a network.
    """
    if not needed:
        return
    install = [
        'python3 -m venv --without-pip "$new/venv"',
        '"$new/venv/bin/python" "$(ls "$new"/wheels/pip-*.whl)/pip" --isolated --no-input install '
        "--quiet --no-cache-dir --disable-pip-version-check --no-index "
        '--find-links "$new/wheels" --require-hashes -r "$new/requirements.lock"',
        'rm -rf "$new/wheels"',
        '"$new/venv/bin/python" -m compileall -q "$new/app"',
        'PYTHONPATH="$new/app" "$new/venv/bin/python" -c "import chat_proxy.__main__"',
    ]
    yield StringCommand("\n".join([*_begin("proxy", release_id), *install, *_END]))
