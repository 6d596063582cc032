"""Build the engine from the source package, once per architecture, on the controller."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import dataclass
from pathlib import Path

from edge.artifacts.cache import Cache
from edge.artifacts.engine_pack import pack_engine
from edge.artifacts.engine_pins import (
    BUILD_OPTIONS,
    BUILD_VARIANTS,
    SDIST_COMMIT,
    SDIST_NAME,
    SDIST_SHA256,
    SDIST_VERSION,
    Arch,
    EnginePin,
)
from edge.artifacts.errors import ArtifactError
from edge.artifacts.progress import Progress

_SOURCES = f"llama_cpp_python-{SDIST_VERSION}/vendor/llama.cpp/"
_STEP = re.compile(r"^\[(\d+)/(\d+)\]")

#: Injected into the project by CMake itself (CMAKE_PROJECT_TOP_LEVEL_INCLUDES). ggml makes every
#: CPU back end a dependency of libggml, so that building llama-server alone builds all fourteen.
_ONLY_NAMED_VARIANTS = """
function(add_dependencies target)
  if(NOT (target STREQUAL "ggml" AND "${ARGN}" MATCHES "^ggml-cpu-"))
    _add_dependencies(${target} ${ARGN})
  endif()
endfunction()
"""

#: What pip needs to take the package's name and version without its real build backend, which
#: would be one more download, unpinned, and is of no use for reading the sources.
_STUB_BACKEND = f"""
from pathlib import Path

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = Path(folder) / "llama_cpp_python-{SDIST_VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\\nName: {SDIST_NAME}\\nVersion: {SDIST_VERSION}\\n"
    )
    return info.name
"""


@dataclass(frozen=True)
class _Toolchain:
    c: str
    cxx: str
    strip: str
    cmake_args: tuple[str, ...]


def build_engine(pin: EnginePin, target: Path, *, cache: Cache, progress: Progress) -> None:
    """Build `pin` and pack it as `target`. About 6 minutes on two cores.

    A build that was cut short goes on where it stopped. Raises ArtifactError when a compiler is
    missing (with the line that installs it), the source cannot be had, or the build fails.
    """
    tools = _toolchain(pin.arch)
    folder = cache.work("build", f"{pin.release_id}-{pin.arch}")
    source = _unpacked(_sdist(cache, progress), folder / "source", progress)
    _compile(source, folder / "build", pin, tools, progress)
    pack_engine(
        folder / "build" / "bin",
        target,
        pin,
        commit=SDIST_COMMIT,
        variants=BUILD_VARIANTS[pin.arch],
        strip=tools.strip,
    )
    shutil.rmtree(folder)


def _toolchain(arch: Arch) -> _Toolchain:
    """The compilers for `arch`: the system's own, or Debian's cross compilers."""
    if arch == platform.machine():
        prefix, package = "", "g++"
        cmake_args: tuple[str, ...] = ()
    else:
        prefix = f"{arch}-linux-gnu-"
        package = f"g++-{arch.replace('_', '-')}-linux-gnu"
        cmake_args = ("-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={arch}")
    found = [shutil.which(f"{prefix}{tool}") for tool in ("gcc", "g++", "strip")]
    if None in found:
        raise ArtifactError(
            f"building the engine for {arch} needs {prefix}g++, which this controller lacks: "
            f"`sudo apt install {package}`, or set engine_source to release"
        )
    c, cxx, strip = (str(path) for path in found)
    return _Toolchain(c=c, cxx=cxx, strip=strip, cmake_args=cmake_args)


def _sdist(cache: Cache, progress: Progress) -> Path:
    """The source package, by pip: it knows the index, proxy and mirror that this machine uses."""
    if (blob := cache.blob(SDIST_SHA256)) is not None:
        return blob
    folder = cache.work("sdist")
    stub = folder / "stub" / "scikit_build_core"
    stub.mkdir(parents=True, exist_ok=True)
    (stub / "__init__.py").write_text("")
    (stub / "build.py").write_text(_STUB_BACKEND)
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{SDIST_NAME}=={SDIST_VERSION} --hash=sha256:{SDIST_SHA256}\n")
    progress.start(f"downloading the engine's source ({SDIST_NAME} {SDIST_VERSION}, 75 MB)", None)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--disable-pip-version-check"),
            *("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"),
            *("--dest", str(folder), "--requirement", str(wanted)),
        ],
        env={**os.environ, "PYTHONPATH": str(stub.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = sorted(folder.glob("*.tar.gz"))
    if done.returncode != 0 or not found:
        raise ArtifactError(
            f"pip could not download {SDIST_NAME} {SDIST_VERSION}, the engine's source:\n"
            f"{done.stderr.strip()[-800:]}\n"
            "Without a network, put that .tar.gz in a folder and set PIP_FIND_LINKS to it and "
            "PIP_NO_INDEX=1"
        )
    blob = cache.add(found[0], SDIST_SHA256)
    progress.done()
    shutil.rmtree(folder)
    return blob


def _unpacked(sdist: Path, target: Path, progress: Progress) -> Path:
    """llama.cpp's sources, without the Python package around them."""
    if target.is_dir():  # appears by a rename, so it is whole
        return target
    half = target.with_name("unpacking")
    shutil.rmtree(half, ignore_errors=True)
    progress.start("unpacking the engine's source", None)
    with tarfile.open(sdist) as tar:
        for member in tar:
            if member.name.startswith(_SOURCES) and (member.isfile() or member.isdir()):
                member.name = member.name.removeprefix(_SOURCES)
                tar.extract(member, half, filter="data")
    half.rename(target)
    progress.done()
    return target


def _compile(
    source: Path, build: Path, pin: EnginePin, tools: _Toolchain, progress: Progress
) -> None:
    build.mkdir(exist_ok=True)
    only = build / "only-named-variants.cmake"
    only.write_text(_ONLY_NAMED_VARIANTS)
    options = {
        **BUILD_OPTIONS,
        "CMAKE_C_COMPILER": tools.c,
        "CMAKE_CXX_COMPILER": tools.cxx,
        "CMAKE_MAKE_PROGRAM": _program("ninja"),
        "CMAKE_PROJECT_TOP_LEVEL_INCLUDES": str(only),
        # Assertions carry file names: the same ones wherever it is built.
        "CMAKE_C_FLAGS": f"-ffile-prefix-map={source}=llama.cpp",
        "CMAKE_CXX_FLAGS": f"-ffile-prefix-map={source}=llama.cpp",
    }
    _logged(
        [
            *(_program("cmake"), "-G", "Ninja", "-S", str(source), "-B", str(build)),
            *tools.cmake_args,
            *(f"-D{name}={value}" for name, value in options.items()),
        ],
        build / "configure.log",
        f"configuring the engine for {pin.arch}",
        progress,
    )
    variants = [f"ggml-cpu-{name}" for name in BUILD_VARIANTS[pin.arch]]
    _logged(
        [_program("ninja"), "-C", str(build), "llama-server", *variants],
        build / "build.log",
        f"building the engine {pin.release_id} for {pin.arch} (about 6 minutes on two cores)",
        progress,
    )


def _program(name: str) -> str:
    """cmake and ninja come as wheels and lie beside this Python."""
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', '')}"
    if (found := shutil.which(name, path=path)) is None:
        raise ArtifactError(f"{name} is not installed: run `make setup` once more")
    return found


def _logged(command: list[str], log: Path, label: str, progress: Progress) -> None:
    """Run `command`, its output to `log`, its [n/m] to `progress`."""
    finished = 0
    lines: list[str] = []
    with (
        log.open("w") as stream,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            stream.write(line)
            lines = [*lines[-30:], line]
            if step := _STEP.match(line):
                if not finished:
                    progress.start(label, int(step[2]), unit="steps")
                progress.advance(int(step[1]) - finished)
                finished = int(step[1])
    if process.returncode != 0:
        raise ArtifactError(
            f"{label}: failed ({process.returncode}); the whole log is {log}\n{''.join(lines)}"
        )
    if finished:
        progress.done()
