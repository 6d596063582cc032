"""Pop!_OS: kernelstub has the options in its configuration and makes systemd-boot's entries."""

from __future__ import annotations

import json
from collections.abc import Sequence

from edge.boot.edit import Generate, Written, conflict, decide
from edge.boot.files import BootSurvey
from edge.boot.loader import Loader
from edge.boot.record import Ours, Record


def kernelstub(boot: BootSurvey, loader: Loader, record: Record, asked: Sequence[str]) -> Written:
    """Its own command adds and deletes options; what is ours is known from the record."""
    file = boot.files[loader.path]
    try:
        options = [str(word) for word in json.loads(file.text)["user"]["kernel_options"]]
    except (ValueError, KeyError, TypeError):
        problem = f"{file.path} is not as kernelstub writes it; see `kernelstub --print-config`"
        return Written(problems=(problem,) if asked else ())
    known = record.places.get(file.path, Ours()).tokens
    there = [token for token in known if token in options]
    decision = decide(asked, [word for word in options if word not in there])
    drops = tuple(token for token in there if token not in decision.ours)
    adds = tuple(token for token in decision.ours if token not in there)
    generate = None
    if drops or adds:
        generate = Generate(
            "kernelstub", boot.tools["kernelstub"], file.path, adds, drops, file.sha256
        )
    return Written(
        places={file.path: Ours(decision.ours)},
        tokens=decision.held,
        generate=generate,
        warnings=tuple(conflict(file.path, *each) for each in decision.conflicts),
    )
