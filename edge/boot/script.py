"""The shell that carries out a plan for the boot files on a host. Pure."""

from __future__ import annotations

import base64
import shlex
from pathlib import Path

from edge.boot.edit import Edit, Generate
from edge.boot.files import to_bytes
from edge.boot.plan import BootPlan
from edge.boot.record import PATH as RECORD_PATH

FUNCTIONS = Path(__file__).with_name("apply.sh").read_text(encoding="utf-8")


def script(plan: BootPlan) -> str:
    """POSIX sh that makes the host's boot files what the plan says.

    It fails, with a message, before it has written anything when a file is no longer what the
    survey saw. What is ours is on the disk before the first edit, so that a power cut at any point
    leaves a host that boots and that the next run mends.
    """
    steps = [_expect(edit) for edit in plan.edits]
    if plan.record:
        steps.append(_expect(plan.record))
    if plan.generate and plan.generate.expected:
        steps.append(_call("expect", plan.generate.path, plan.generate.expected))
    if plan.record and (plan.edits or plan.generate):
        steps.append(_put(RECORD_PATH, plan.during))
    steps += [step for edit in plan.edits for step in _write(edit)]
    if plan.generate:
        steps.append(_generate(plan.generate))
    if plan.record:
        steps += _write(plan.record)
    return "\n".join([FUNCTIONS, *steps, ""])


def _expect(edit: Edit) -> str:
    return _call("expect", edit.path, edit.expected)


def _write(edit: Edit) -> list[str]:
    if edit.after is None:
        return [_call("take", edit.path, *([edit.folder] if edit.folder else []))]
    return [_put(edit.path, edit.after)]


def _put(path: str, text: str) -> str:
    content = base64.encodebytes(to_bytes(text)).decode()
    return f"{_call('put', path)} <<'EDGE'\n{content}EDGE"


def _generate(generate: Generate) -> str:
    start = (generate.tool, generate.path)
    if generate.kind == "kernelstub":
        return _call("kernelstub", *start, " ".join(generate.drops), " ".join(generate.holds))
    return _call(generate.kind.replace("-", "_"), *start, *generate.holds)


def _call(*words: str) -> str:
    return shlex.join(words)
