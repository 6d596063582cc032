"""Runs the real `pyinfra` in the checkout, as an operator does, many times a second.

Most of a run is the import of pyinfra (0.7 s). A process that has imported it is forked for each
run: the same command, with nothing left over from the run before.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
from functools import cache
from typing import IO, cast

from edge.fleet import CHECKOUT

_FORKS = """
import json, os, sys, tempfile
import pyinfra_cli.main
from gevent.monkey import get_original

fork, waitpid = get_original("os", "fork"), get_original("os", "waitpid")
for line in sys.stdin:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if not (child := fork()):
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.argv = ["pyinfra", *json.loads(line)]
            pyinfra_cli.main.main()
        status = os.waitstatus_to_exitcode(waitpid(child, 0)[1])
        out.seek(0), err.seek(0)
        print(json.dumps([status, out.read().decode(), err.read().decode()]), flush=True)
"""


def pyinfra(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`pyinfra ARGUMENTS…` with no terminal and an empty standard input."""
    server = _server()
    cast(IO[str], server.stdin).write(json.dumps(arguments) + "\n")
    cast(IO[str], server.stdin).flush()
    status, out, err = json.loads(cast(IO[str], server.stdout).readline())
    return subprocess.CompletedProcess(arguments, status, out, err)


@cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-c", _FORKS],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYINFRA_PROGRESS": "off"},
    )
    atexit.register(server.wait)
    atexit.register(cast(IO[str], server.stdin).close)  # called first; ends it
    return server


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """This Python in the checkout."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def closed_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
