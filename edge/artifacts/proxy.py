"""The proxy's bundle: its code and every wheel that its venv needs, so that hosts need no internet.

    app/chat_proxy/…   wheels/*.whl   requirements.lock   bundle.json {python, arch, pip}

pip's own wheel is among the wheels: a host with `python3 -m venv --without-pip` runs pip from it
(PYTHONPATH=wheels/pip-….whl python -m pip install --no-index --find-links wheels …).
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from edge.artifacts.cache import Artifact, Cache, sha256_of
from edge.artifacts.elf import check_wheel
from edge.artifacts.errors import ArtifactError
from edge.artifacts.progress import Progress
from edge.artifacts.tarball import pack

#: The pip that hosts install with; runs on Python 3.10 and later.
_PIP = "pip==26.3 --hash=sha256:f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"

#: glibc of the wheels that are taken; the oldest supported host (Ubuntu 22.04) has 2.35.
_MANYLINUX = ("2_34", "2_31", "2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")

#: Raise it when the bundle's layout changes: hosts see it as a new release.
_LAYOUT = 1


def proxy_release_id(code_dir: Path, lock: Path, python: str, arch: str) -> str:
    """The bundle's name, "p-<12 hex>", from what goes into it; nothing is fetched."""
    digest = hashlib.sha256(json.dumps([python, arch, _PIP, _LAYOUT]).encode())
    for path in [lock, *_code_files(code_dir)]:
        name = "" if path == lock else str(path.relative_to(code_dir))
        contents = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(json.dumps([name, contents]).encode())
    return f"p-{digest.hexdigest()[:12]}"


def fetch_proxy(
    code_dir: Path, lock: Path, python: str, arch: str, *, cache: Cache, progress: Progress
) -> Artifact:
    """The bundle for hosts with this Python ("3.11") and architecture, from the cache or made.

    The lock's wheels are collected by pip, each checked against the lock's hashes. Raises
    ArtifactError when one cannot be had for that Python and architecture, or has a library that
    hosts with large pages could not load.
    """
    release_id = proxy_release_id(code_dir, lock, python, arch)
    with cache.lock(f"proxy-{release_id}", progress):
        if (known := cache.recorded("proxies", release_id)) is not None:
            return known
        stage = cache.work("proxy", release_id)
        shutil.rmtree(stage)
        for path in _code_files(code_dir):
            target = stage / "app" / "chat_proxy" / path.relative_to(code_dir)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        (stage / "wheels").mkdir(parents=True)
        shutil.copyfile(lock, stage / "requirements.lock")
        _collect_wheels(stage / "wheels", lock, python, arch, progress)
        for wheel in sorted((stage / "wheels").iterdir()):
            check_wheel(wheel, arch)
        (pip,) = (path.name for path in (stage / "wheels").glob("pip-*.whl"))
        facts = {"python": python, "arch": arch, "pip": pip}
        (stage / "bundle.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
        packed = cache.work("packing") / f"{release_id}.tar.gz"
        pack(stage, packed)
        shutil.rmtree(stage)
        sha256, size = sha256_of(packed), packed.stat().st_size
        path = cache.adopt(packed, sha256)
        artifact = Artifact(path=path, sha256=sha256, size_bytes=size, release_id=release_id)
        cache.record("proxies", release_id, artifact)
        return artifact


def _code_files(code_dir: Path) -> list[Path]:
    """The proxy's code and page, without what Python or an editor leaves beside it."""
    if not code_dir.is_dir():
        raise ArtifactError(f"there is no folder {code_dir} with the proxy's code")
    found = (path.relative_to(code_dir) for path in code_dir.rglob("*") if path.is_file())
    kept = (
        path
        for path in found
        if not any(part.startswith((".", "__pycache__")) for part in path.parts)
        and not path.name.startswith("requirements.")
    )
    return [code_dir / path for path in sorted(kept)]


def _collect_wheels(folder: Path, lock: Path, python: str, arch: str, progress: Progress) -> None:
    wanted = [*_for_target(lock, python, arch), _PIP]
    listed = folder / "wanted.txt"
    listed.write_text("\n".join(wanted) + "\n")
    progress.start(
        f"collecting {len(wanted)} wheels of the proxy for Python {python} on {arch}", None
    )
    command = [
        *(sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"),
        *("--no-deps", "--only-binary", ":all:", "--require-hashes"),
        *("--implementation", "cp", "--python-version", python),
        *("--abi", f"cp{python.replace('.', '')}"),
        *(part for tag in _MANYLINUX for part in ("--platform", f"manylinux_{tag}_{arch}")),
        *("--platform", f"manylinux2014_{arch}", "--platform", f"linux_{arch}"),
        *("--dest", str(folder), "--requirement", str(listed)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    listed.unlink()
    if done.returncode != 0:
        raise ArtifactError(
            f"pip could not collect the proxy's wheels for Python {python} on {arch} "
            f"(from {lock}):\n{done.stderr.strip()[-800:]}\n"
            "Without a network, put the wheels in a folder and set PIP_FIND_LINKS to it and "
            "PIP_NO_INDEX=1"
        )
    progress.done()


def _for_target(lock: Path, python: str, arch: str) -> Iterator[str]:
    """The lock's lines that apply to the target: pip would judge markers by its own Python."""
    target = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": arch,
    }
    joined = re.sub(r"\\\n", " ", lock.read_text(encoding="utf-8"))
    for line in joined.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        head, *hashes = line.split(" --hash=")
        try:
            requirement = Requirement(head.strip())
        except InvalidRequirement as error:
            raise ArtifactError(f"{lock} cannot be read at {head.strip()!r}: {error}") from error
        if requirement.marker is None or requirement.marker.evaluate(target):
            pins = "".join(f" --hash={value.strip()}" for value in hashes)
            yield f"{requirement.name}{requirement.specifier}{pins}"
