"""The request: the state that a host is to serve in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .paths import KINDS
from .result import Failed
from .units import ENGINE, PROXY, name

FORMAT = 1


@dataclass(frozen=True)
class Wanted:
    """The state that a request asks for; `raw` is the request as it came."""

    raw: dict[str, Any]
    plan_digest: str
    releases: dict[str, str]
    model_path: str
    digests: dict[str, str]
    files: tuple[str, ...]
    enable: tuple[str, ...]
    engine_url: str
    proxy_url: str
    slots: int
    gate_timeout_s: float
    keep_releases: int
    newest: tuple[str, ...]  # files that keep what they have when the host goes back

    @classmethod
    def parse(cls, raw: Any) -> Wanted:
        """Raises Failed if the request is not one of format 1."""
        if not isinstance(raw, dict):
            raise Failed("the request cannot be used: it is no JSON object")
        try:
            if raw["format"] != FORMAT:
                raise ValueError(f"format {raw['format']!r}, this edge-host knows {FORMAT}")
            wanted = cls(
                raw=raw,
                plan_digest=str(raw["plan_digest"]),
                releases={kind: str(raw["releases"][kind]) for kind in KINDS},
                model_path=str(raw["model"]["path"]),
                digests={unit: str(raw["digests"][name(unit)]) for unit in (ENGINE, PROXY)},
                files=tuple(map(str, raw["files"])),
                enable=tuple(map(str, raw["enable"])),
                engine_url=str(raw["engine_url"]),
                proxy_url=str(raw["proxy_url"]),
                slots=int(raw["slots"]),
                gate_timeout_s=float(raw["gate_timeout_s"]),
                keep_releases=int(raw["keep_releases"]),
                newest=tuple(map(str, raw.get("newest", ()))),
            )
        except KeyError as error:
            raise Failed(f"the request cannot be used: it has no {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise Failed(f"the request cannot be used: {error}") from error
        for release in wanted.releases.values():
            if not re.fullmatch(r"\w[\w.+-]*", release):
                raise Failed(f"the request cannot be used: release id {release!r}")
        for path in (*wanted.files, wanted.model_path):
            if not path.startswith("/") or ".." in path.split("/"):
                raise Failed(f"the request cannot be used: {path!r} is not an absolute path")
        return wanted
