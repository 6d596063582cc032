"""One call at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from .paths import Paths
from .result import Failed, now, say

POLL_S = 0.25


@contextlib.contextmanager
def locked(paths: Paths, verb: str, wait_s: float) -> Iterator[None]:
    """One activation at a time; probes wait for it, too. Says whom it waits for.

    Raises Failed when the lock was not to be had within `wait_s` seconds.
    """
    # Root's own directory: where everybody may write, others could hold it or put a link there.
    paths.lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with os.fdopen(os.open(paths.lock, flags, 0o600), "r+") as file:
        kind = fcntl.LOCK_EX if verb == "activate" else fcntl.LOCK_SH
        start, said = time.monotonic(), 0.0
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - start
                file.seek(0)
                holder = file.read().strip() or "an unknown process"
                if waited > wait_s:
                    raise Failed(f"another edge-host is at work on this host: {holder}") from None
                if waited >= said + 2:
                    say(f"waiting for another edge-host: {holder}")
                    said = waited + 28
                time.sleep(POLL_S)
        file.seek(0)
        file.truncate()
        file.write(f"{verb}, process {os.getpid()}, since {now()}\n")
        file.flush()
        yield
