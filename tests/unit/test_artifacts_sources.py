from __future__ import annotations

from pathlib import Path

import pytest

from edge.artifacts import ModelSource, SourceError, parse_source


def test_hub() -> None:
    value = "hub:Qwen/Qwen2.5-0.5B-Instruct-GGUF@9217f5d/sub/qwen2.5.gguf"
    assert parse_source(value) == ModelSource(
        kind="hub",
        value=value,
        file_name="qwen2.5.gguf",
        repo="Qwen/Qwen2.5-0.5B-Instruct-GGUF",
        revision="9217f5d",
        file="sub/qwen2.5.gguf",
    )


def test_url() -> None:
    value = "https://models.example/a/b%20c.gguf?download=true"
    assert parse_source(value) == ModelSource(
        kind="url", value=value, file_name="b c.gguf", url=value
    )


def test_file() -> None:
    source = parse_source("file:///srv/my%20models/m.gguf")
    assert (source.kind, source.path, source.file_name) == (
        "file",
        Path("/srv/my models/m.gguf"),
        "m.gguf",
    )


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "empty"),
        ("qwen.gguf", "does not say where"),
        ("/srv/m.gguf", "file:///srv/m.gguf"),
        ("ftp://host/m.gguf", "ftp: is not a kind of source"),
        ("hub:Qwen/Repo/m.gguf", "revision is missing"),
        ("hub:Repo@main/m.gguf", "is not OWNER/REPO"),
        ("hub:Qwen/Repo@main", "after the @"),
        ("hub:Qwen/Repo@main/../../m.gguf", "not a file inside"),
        ("https://host", "needs a host and a file"),
        ("https://me:secret@host/m.gguf", "ends up in logs"),
        ("file://srv/m.gguf", "three slashes"),
        ("file:m.gguf", "absolute"),
    ],
)
def test_what_is_refused_is_named_with_what_is_allowed(value: str, says: str) -> None:
    with pytest.raises(SourceError, match=says) as error:
        parse_source(value)
    for part in ("model_source", repr(value), "hub:OWNER/REPO@REVISION/FILE", "file:///"):
        assert part in str(error.value)
