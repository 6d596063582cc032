"""Loaders whose files are edited where they stand: our words on the line of each kernel.

The Raspberry Pi's cmdline.txt, Armbian's armbianEnv.txt, extlinux.conf, systemd-boot's entries and
/etc/kernel/cmdline. Everything else in them stays, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edge.boot.edit import Decision, Edit, Generate, Written, conflict, digest, rewritten
from edge.boot.files import BootFile, BootSurvey
from edge.boot.line import LineError, edited, words
from edge.boot.loader import Loader
from edge.boot.loader import entries as loader_entries
from edge.boot.next_boot import held
from edge.boot.record import Ours, Record

KERNEL_CMDLINE = "/etc/kernel/cmdline"
COPY = ".edge-llm.bak"
"""Added to a file's name for the copy of its first state."""
# What the version of this project that kept no record has added, to cmdline.txt only.
BEFORE_THE_RECORD = ("cgroup_enable=memory", "cgroup_memory=1")

Spans = list[tuple[int, int]]


@dataclass(frozen=True)
class _Place:
    """A command line in a file: the parts of the text that it stands in."""

    name: str
    """In the record."""
    spans: Spans
    line: str = ""
    """What a line of ours begins with, where there is no line for it yet."""


def raspberry_pi(boot: BootSurvey, loader: Loader, record: Record, asked: Sequence[str]) -> Written:
    """cmdline.txt: exactly one line with one root=."""
    file = boot.files[loader.path]
    copy = boot.files.get(file.path + COPY)
    if file.path not in record.places and copy is not None:
        first = words(copy.text)
        found = tuple(
            token
            for token in words(file.text)
            if token not in first and token in (*BEFORE_THE_RECORD, *asked)
        )
        record = Record({**record.places, file.path: Ours(found)})
    first_line = re.match(r"[^\r\n]*", file.text)
    assert first_line is not None
    roots = [word for word in file.text.split() if word.startswith("root=")]
    place = _Place(file.path, [first_line.span()])
    written = _files([file], lambda _: [place], boot, record, asked)
    if written.edits and (len(roots) != 1 or file.text[first_line.end() :].strip()):
        # Written as it is, it could be a host that does not boot.
        problem = f"{file.path} is not one line with one root=; mend it by hand"
        return replace(written, problems=(*written.problems, problem))
    return written


def armbian(boot: BootSurvey, loader: Loader, record: Record, asked: Sequence[str]) -> Written:
    """armbianEnv.txt: its extraargs=."""
    file = boot.files[loader.path]
    # Of several, U-Boot takes the last one.
    spans = [found.span(1) for found in re.finditer(r"(?m)^extraargs=([^\r\n]*)", file.text)][-1:]
    place = _Place(file.path, spans, "extraargs=")
    return _files([file], lambda _: [place], boot, record, asked)


def extlinux(boot: BootSurvey, loader: Loader, record: Record, asked: Sequence[str]) -> Written:
    """extlinux.conf: the APPEND line of each label, but for those of rescue targets."""
    return _files([boot.files[loader.path]], _labels, boot, record, asked)


def kernel_cmdline(
    boot: BootSurvey, loader: Loader, record: Record, asked: Sequence[str]
) -> Written:
    """/etc/kernel/cmdline alone, from which u-boot-update makes extlinux.conf."""
    file = boot.files[KERNEL_CMDLINE]
    written = _files([file], _whole, boot, record, asked)
    recorded = record.places.get(file.path, Ours()).tokens
    ours = written.places.get(file.path, Ours()).tokens
    now = held(written.tokens, boot, loader)
    if written.edits or recorded != ours or now != written.tokens:
        tool = boot.tools["u-boot-update"]
        made = Generate("u-boot-menu", tool, loader.path, written.tokens)
        return replace(written, generate=made)
    return written


def systemd_boot(boot: BootSurvey, record: Record, asked: Sequence[str], kernel: str) -> Written:
    """The entries that there are, and /etc/kernel/cmdline for those of kernels to come."""
    entries = loader_entries(boot)
    # An entry that kernel-install has made since has what is in /etc/kernel/cmdline.
    known = record.places.get(KERNEL_CMDLINE, Ours())
    inherited = {_entry(file.path): Ours(known.tokens) for file in entries}
    record = Record({**inherited, **record.places})
    written = _files(entries, _options, boot, record, asked)
    current = next((file for file in entries if _is_of(file, kernel)), entries[-1])
    there = boot.files.get(KERNEL_CMDLINE)
    if there is not None:
        more = _files([there], _whole, boot, record, asked)
        ours = more.places.get(there.path, Ours())
        if known.made and not ours.tokens and known.made == there.sha256:
            more = replace(more, edits=(Edit(there.path, there.text, None, known.top),))
        elif known.made:
            text = more.edits[0].after if more.edits else there.text
            assert text is not None
            made = digest(text) if known.made == there.sha256 else known.made
            more = replace(more, places={there.path: replace(ours, made=made, top=known.top)})
    elif mine := written.places.get(_entry(current.path), Ours()).tokens:
        more = _made_kernel_cmdline(boot, record, current, mine)
    else:
        more = Written(tokens=written.tokens)
    return Written(
        (*written.edits, *more.edits),
        {**written.places, **more.places},
        tuple(token for token in written.tokens if token in more.tokens),
        None,
        (*written.problems, *more.problems),
        tuple(dict.fromkeys((*written.warnings, *more.warnings))),
    )


def _made_kernel_cmdline(
    boot: BootSurvey, record: Record, current: BootFile, tokens: Sequence[str]
) -> Written:
    """The file that kernel-install would otherwise fill from the running kernel's line."""
    vendor = boot.files.get("/usr/lib/kernel/cmdline")
    if vendor is not None:
        base = " ".join(vendor.text.split())
    else:
        ours = record.places.get(_entry(current.path), Ours()).tokens
        options = " ".join(current.text[a:b] for a, b in _options(current)[0].spans)
        # kernel-install adds these two by itself.
        own = ("initrd=", "systemd.machine_id=")
        kept = words(edited(options, ours, ()))
        base = " ".join(word for word in kept if not word.startswith(own))
    text = edited(base, (), tokens) + "\n"
    top = "" if "/etc/kernel" in boot.folders else "/etc/kernel"
    place = Ours(tuple(tokens), digest(text), top)
    return Written((Edit(KERNEL_CMDLINE, None, text, top),), {KERNEL_CMDLINE: place}, tuple(tokens))


def _is_of(entry: BootFile, kernel: str) -> bool:
    """Whether an entry starts this version of the kernel."""
    return (
        re.search(rf"(?m)^[ \t]*(version|linux)[ \t].*{re.escape(kernel)}\b", entry.text)
        is not None
    )


def _entry(path: str) -> str:
    """An entry's name without the count of boots that are left (`+3`, `+2-1`), which changes."""
    return re.sub(r"\+\d+(-\d+)?(?=\.conf$)", "", path)


# --- Where the command lines stand in a file


def _whole(file: BootFile) -> list[_Place]:
    spans = [
        found.span() for found in re.finditer(r"(?m)^[^\r\n]*", file.text)
        if found[0].strip() and not found[0].lstrip().startswith("#")
    ]  # fmt: skip
    return [_Place(file.path, spans or [(0, 0)])]


def _options(file: BootFile) -> list[_Place]:
    found = re.finditer(r"(?m)^[ \t]*options[ \t]+([^\r\n]*)", file.text)
    return [_Place(_entry(file.path), [each.span(1) for each in found], "options ")]


def _labels(file: BootFile) -> list[_Place]:
    label, places = "", []
    for found in re.finditer(r"(?mi)^[ \t]*(label|append)[ \t]+([^\r\n]*)", file.text):
        if found[1].lower() == "label":
            label = found[2].strip()
        elif "single" not in words(found[2]):
            places.append(_Place(f"{file.path}#{label}", [found.span(2)]))
    return places


# --- Editing them


def _files(
    files: Sequence[BootFile],
    places_in: Callable[[BootFile], list[_Place]],
    boot: BootSurvey,
    record: Record,
    asked: Sequence[str],
) -> Written:
    edits: list[Edit] = []
    copies: list[Edit] = []
    places: dict[str, Ours] = {}
    holding: list[tuple[str, ...]] = []
    warnings: list[str] = []
    problems: list[str] = []
    for file in files:
        text, had, has = file.text, False, False
        for place in reversed(places_in(file)):
            ours = record.places.get(place.name, Ours())
            try:
                text, decision, made = _edited(text, place, ours, asked)
            except LineError as error:
                problems.append(f"{file.path} is not edited: {error}; mend it by hand")
                continue
            places[place.name] = Ours(decision.ours, made)
            holding.append(decision.held)
            warnings += [conflict(file.path, *each) for each in decision.conflicts]
            had = had or not set(ours.tokens).isdisjoint(words(file.text))
            has = has or bool(decision.ours)
        copy = boot.files.get(file.path + COPY)
        if not has and copy is not None and copy.text.strip() == text.strip():
            text = copy.text  # its former version had put the line's ends in order
        if text != file.text:
            edits.append(Edit(file.path, file.text, text))
        if _kept(file.path):
            before = copy.text if copy else None
            if has and not had and before != file.text:
                copies.append(Edit(file.path + COPY, before, file.text))
            elif copy is not None and not has:
                edits.append(Edit(copy.path, copy.text, None))
    tokens = tuple(token for token in asked if all(token in each for each in holding))
    return Written(
        (*copies, *edits),
        places,
        tokens if holding else (),
        None,
        tuple(problems),
        tuple(dict.fromkeys(warnings)),
    )


def _kept(path: str) -> bool:
    """Whether a copy is kept: of what a person may have to mend with nothing else at hand."""
    return path.endswith(("/cmdline.txt", "/armbianEnv.txt", "/extlinux.conf"))


def _edited(
    text: str, place: _Place, ours: Ours, asked: Sequence[str]
) -> tuple[str, Decision, str]:
    """The text with our words in this place; whether the line itself is ours ("line")."""
    if not place.spans:
        _, decision = rewritten([""], (), asked)
        if decision.ours:
            text = _with_line(text, place.line + " ".join(decision.ours))
        return text, decision, "line" if decision.ours else ""
    parts = [text[start:end] for start, end in place.spans]
    new, decision = rewritten(parts, ours.tokens, asked)
    if ours.made == "line" and not decision.ours and not "".join(new).strip():
        return _without_line(text, place), decision, ""
    for (start, end), part in sorted(zip(place.spans, new, strict=True), reverse=True):
        text = text[:start] + part + text[end:]
    return text, decision, ours.made if decision.ours else ""


def _with_line(text: str, line: str) -> str:
    end = "\r\n" if "\r\n" in text else "\n"
    return f"{text}{line}{end}" if text.endswith("\n") else f"{text}{end}{line}"


def _without_line(text: str, place: _Place) -> str:
    start = place.spans[0][0] - len(place.line)
    line_end = re.compile(r"[^\n]*(\n?)").match(text, start)
    assert line_end is not None
    if line_end[1]:
        return text[:start] + text[line_end.end() :]
    return re.sub(r"\r?\n\Z", "", text[:start])
