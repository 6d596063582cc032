"""The program on the hosts: the package files/edge_host as one file that Python runs."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "files" / "edge_host"
# Isolated: neither PYTHON* variables, user site-packages nor the directory change what it imports.
SHEBANG = b"#!/usr/bin/python3 -I\n"
START = b"import sys\n\nfrom edge_host.__main__ import main\n\nsys.exit(main())\n"


@cache
def agent_program() -> bytes:
    """A zip application. The same source gives the same bytes, whoever makes it and when.

    Its digest decides whether a host has it. So nothing comes from the clock, from the files'
    times and modes or from a compressor's version.
    """
    files = {f"edge_host/{path.name}": path.read_bytes() for path in PACKAGE.glob("*.py")}
    files["__main__.py"] = START
    program = io.BytesIO()
    program.write(SHEBANG)
    with zipfile.ZipFile(program, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3  # Unix, wherever the controller runs
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])
    return program.getvalue()
