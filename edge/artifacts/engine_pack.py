"""From a folder of llama.cpp binaries to the one layout that hosts get.

    llama-server  lib*.so.N  libggml-cpu-<variant>.so  engine.json      (one flat folder)

engine.json: {build, kind, arch, commit, variants, glibc_floor: [2, 34], glibcxx_floor,
system_libraries}. The last is what a host's own packages must bring (libgomp.so.1, …).
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from pathlib import Path

from edge.artifacts.elf import check_page_size, is_elf, read_elf
from edge.artifacts.engine_pins import EnginePin
from edge.artifacts.errors import ArtifactError
from edge.artifacts.tarball import pack

_VARIANT = "libggml-cpu-"
_LEFT_OUT = frozenset({"sapphirerapids"})  # see BUILD_VARIANTS


def pack_engine(
    binaries: Path,
    target: Path,
    pin: EnginePin,
    *,
    commit: str | None = None,
    variants: tuple[str, ...] | None = None,
    strip: str | None = None,
) -> None:
    """Pack the engine in `binaries` as `target` (.tar.gz), checked against its pin.

    `variants`: which CPU back ends to take (default: all that are there). `strip`: the program
    that strips them. Raises ArtifactError when a part is missing, is for another architecture or
    for smaller pages, needs a newer glibc than the pin says, or does not start here (own
    architecture only).
    """
    stage = target.with_name(f"{target.name}.stage")
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    try:
        names = [f"{_VARIANT}{name}.so" for name in variants or _variants_in(binaries)]
        system = _copy_closure(binaries, stage, ["llama-server", *names])
        if strip:
            _run([strip, "--strip-unneeded", *sorted(str(path) for path in stage.iterdir())])
        facts = _facts(stage, pin)
        manifest = {
            "build": pin.build,
            "kind": pin.kind,
            "arch": pin.arch,
            "commit": commit,
            "variants": _variants_in(stage),
            "system_libraries": system,
            **facts,
        }
        if pin.arch == platform.machine():
            _check_starts(stage, pin)
        (stage / "engine.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
        pack(stage, target)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _variants_in(folder: Path) -> list[str]:
    names = (path.name[len(_VARIANT) : -len(".so")] for path in folder.glob(f"{_VARIANT}*.so"))
    return sorted(set(names) - _LEFT_OUT)


def _copy_closure(binaries: Path, stage: Path, wanted: list[str]) -> list[str]:
    """Copy `wanted` and the libraries beside them that they need; gives what is not beside."""
    system: set[str] = set()
    if len(wanted) == 1:
        raise ArtifactError(f"no {_VARIANT}*.so in {binaries}: an engine without a CPU back end")
    while wanted:
        name = wanted.pop()
        if (stage / name).exists() or name in system:
            continue
        source = binaries / name
        if source.exists():
            shutil.copy(source, stage / name)  # follows links: one file a name
            (stage / name).chmod(0o755)
            wanted += read_elf(source).needed
        elif name == "llama-server" or name.startswith((_VARIANT, "libggml", "libllama")):
            raise ArtifactError(f"{name} is missing in {binaries}")
        else:
            system.add(name)
    return sorted(system)


def _facts(stage: Path, pin: EnginePin) -> dict[str, object]:
    infos = {path.name: read_elf(path) for path in stage.iterdir() if is_elf(path)}
    for name, info in infos.items():
        if info.arch != pin.arch:
            raise ArtifactError(f"{name} is for {info.arch}, wanted {pin.arch}")
        check_page_size(f"{name} of the engine {pin.release_id}", info.page_size, pin.arch)
    floor = max(info.floor("GLIBC") for info in infos.values())
    if floor > pin.glibc_floor:
        raise ArtifactError(
            f"the engine {pin.release_id} ({pin.arch}) needs glibc {_dotted(floor)}, its plan "
            f"counts on {_dotted(pin.glibc_floor)}. A build is as new as the system it is made "
            "on: run the controller on Debian 12 or Ubuntu 22.04, or set engine_source to release"
        )
    return {
        "glibc_floor": list(floor),
        "glibcxx_floor": _dotted(max(info.floor("GLIBCXX") for info in infos.values())),
    }


def _check_starts(stage: Path, pin: EnginePin) -> None:
    said = _run([str(stage / "llama-server"), "--version"])
    if str(pin.build) not in said:
        raise ArtifactError(
            f"llama-server --version of {pin.release_id} does not name build {pin.build}: {said!r}"
        )


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ArtifactError(f"{command[0]} did not run: {error}") from error
    said = (done.stdout + done.stderr).strip()
    if done.returncode != 0:
        raise ArtifactError(f"{command[0]} failed ({done.returncode}): {said[-500:]}")
    return said


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
