"""Where a model comes from: the setting `model_source`, parsed. Pure; fetches nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import unquote, urlsplit

from edge.artifacts.errors import ArtifactError

_ALLOWED = (
    "allowed are hub:OWNER/REPO@REVISION/FILE.gguf, https://HOST/….gguf, http://HOST/….gguf "
    "and file:///absolute/path.gguf"
)


class SourceError(ArtifactError):
    """The setting `model_source` names nothing that can be fetched."""

    def __init__(self, value: str, reason: str) -> None:
        super().__init__(f"model_source {value!r}: {reason}; {_ALLOWED}")
        self.value = value
        self.reason = reason


@dataclass(frozen=True)
class ModelSource:
    """One parsed `model_source`.

    `repo`, `revision` and `file` are set for kind "hub" (`file` may have folders), `url` for
    "url", `path` for "file".
    """

    kind: Literal["hub", "url", "file"]
    value: str
    file_name: str
    repo: str = ""
    revision: str = ""
    file: str = ""
    url: str = ""
    path: Path | None = None

    def __str__(self) -> str:
        return self.value


def parse_source(value: str) -> ModelSource:
    """Parse `model_source`. Raises SourceError, which names the value and what is allowed."""
    text = value.strip()
    if text.startswith("hub:"):
        return _hub(text)
    address = urlsplit(text)
    if address.scheme in ("http", "https"):
        return _url(text)
    if address.scheme == "file":
        return _file(text)
    if text.startswith(("/", "~", "./")):
        raise SourceError(value, f"a path is written as an address: file://{text}")
    if address.scheme:
        raise SourceError(value, f"{address.scheme}: is not a kind of source")
    raise SourceError(value, "it does not say where the file comes from" if text else "it is empty")


def _hub(text: str) -> ModelSource:
    repo, at, rest = text.removeprefix("hub:").partition("@")
    if not at:
        raise SourceError(text, "the revision is missing (@REVISION after the repository)")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise SourceError(text, f"{repo!r} is not OWNER/REPO")
    revision, slash, file = rest.partition("/")
    if not revision or not slash or not file:
        raise SourceError(text, "after the @ come the revision, a slash and the file")
    parts = PurePosixPath(file).parts
    if ".." in parts or file.startswith("/"):
        raise SourceError(text, f"{file!r} is not a file inside the repository")
    return ModelSource(
        kind="hub", value=text, file_name=parts[-1], repo=repo, revision=revision, file=file
    )


def _url(text: str) -> ModelSource:
    address = urlsplit(text)
    name = PurePosixPath(unquote(address.path)).name
    if not address.hostname or not name:
        raise SourceError(text, "the address needs a host and a file")
    if address.username or address.password:
        raise SourceError(text, "a password in an address ends up in logs")
    return ModelSource(kind="url", value=text, file_name=name, url=text)


def _file(text: str) -> ModelSource:
    address = urlsplit(text)
    path = Path(unquote(address.path))
    if address.netloc not in ("", "localhost"):
        raise SourceError(text, "three slashes: file:///absolute/path")
    if not path.is_absolute() or not path.name:
        raise SourceError(text, "the path must be absolute and name a file")
    return ModelSource(kind="file", value=text, file_name=path.name, path=path)
