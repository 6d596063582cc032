"""A file of a model hub, resolved by the hub's own client.

The client finds the file, follows redirects, brings the token and names what is wrong. The bytes
are then fetched by our own download: since 2.x hf_hub_download throws a half file away when it is
killed, and its xet transfer hangs near the end for some.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from edge.artifacts.errors import ArtifactError
from edge.artifacts.sources import ModelSource

_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class HubFile:
    """Where the file is, and the headers (a token, if there is one) to ask for it with."""

    url: str
    headers: Mapping[str, str]


def resolve(source: ModelSource, sha256: str, endpoint: str | None) -> HubFile:
    """Find `source` on the hub at `endpoint` (None: the client's own, or $HF_ENDPOINT).

    Raises ArtifactError when it is not there, not allowed, not the file with this sha256, or
    when the hub cannot be reached.
    """
    # Imported here: half a second, and only this needs it.
    from huggingface_hub import constants, get_hf_file_metadata, get_token, hf_hub_url
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    hub = endpoint or constants.ENDPOINT
    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = hf_hub_url(source.repo, source.file, revision=source.revision, endpoint=hub)
    try:
        found = get_hf_file_metadata(url, token=token, endpoint=hub, timeout=_TIMEOUT_S)
    except EntryNotFoundError as error:
        raise ArtifactError(
            f"{source.file} is not in {source.repo} at {source.revision} on {hub}"
            f"{_near(source, hub)}. Check model_source"
        ) from error
    except RevisionNotFoundError as error:
        raise ArtifactError(
            f"{source.repo} on {hub} has no revision {source.revision}. Check model_source"
        ) from error
    except GatedRepoError as error:
        raise ArtifactError(
            f"{source.repo} on {hub} asks for its licence to be accepted: accept it there, then "
            "put a token of that account in HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise ArtifactError(
            f"{hub} has no model {source.repo}, or it is private. Check model_source; for a "
            "private model put a token in HF_TOKEN"
        ) from error
    except Exception as error:  # the client's HTTP library, and so its errors, are its own affair
        raise ArtifactError(
            f"{hub} cannot be asked for {source.file}: {error}\n"
            "Without a way to the hub: set hub_endpoint to a mirror, or bring the file yourself "
            f"and set model_source to file:///path/to/{source.file_name}"
        ) from error
    if found.etag and re.fullmatch(r"[0-9a-f]{64}", found.etag) and found.etag != sha256:
        raise ArtifactError(
            f"{source} has another sha256 on {hub}; nothing was downloaded\n"
            f"  expected sha256 {sha256}\n"
            f"  found    sha256 {found.etag} ({found.size} bytes)\n"
            "Check model_sha256, and the revision in model_source"
        )
    return HubFile(url=url, headers=headers)


def _near(source: ModelSource, hub: str) -> str:
    """ "; near are a.gguf, b.gguf" if the hub tells what the repository has."""
    from huggingface_hub import HfApi

    try:
        files = HfApi(endpoint=hub).list_repo_files(source.repo, revision=source.revision)
    except Exception:  # only a help in an error message
        return ""
    models = {name.lower(): name for name in files if name.endswith(".gguf")}
    near = difflib.get_close_matches(source.file.lower(), models, n=3, cutoff=0.3)
    return f"; near are {', '.join(models[name] for name in near)}" if near else ""
