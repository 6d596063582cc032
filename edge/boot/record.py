"""What of the boot files is ours, as the host itself keeps it: /var/lib/edge-llm/boot.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PATH = "/var/lib/edge-llm/boot.json"
FORMAT = 1


@dataclass(frozen=True)
class Ours:
    """Our part of one place: a file, or an entry of one ("file#label")."""

    tokens: tuple[str, ...] = ()
    made: str = ""
    """"line" where the line is ours; sha256 of the file as we made it where the file is."""
    top: str = ""
    """The topmost folder that was made for the file."""


@dataclass(frozen=True)
class Record:
    """Places to what of them is ours. A place where everything is the operator's is kept, too."""

    places: Mapping[str, Ours] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Record:
        """From the file's text; an empty one where it is none of ours."""
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                return cls()
            return cls({place: _ours(each) for place, each in data["places"].items()})
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def text(self) -> str:
        """The file's text; empty where there is nothing to keep."""
        if not self.places:
            return ""
        places = {
            place: {
                "tokens": list(ours.tokens),
                **({"made": ours.made} if ours.made else {}),
                **({"top": ours.top} if ours.top else {}),
            }
            for place, ours in sorted(self.places.items())
        }
        return json.dumps({"format": FORMAT, "places": places}, indent=1) + "\n"

    def also(self, other: Record) -> Record:
        """Both: what is ours while the files are being changed from the one to the other."""
        places = dict(self.places)
        for place, new in other.places.items():
            old = places.get(place, Ours())
            tokens = (*old.tokens, *(token for token in new.tokens if token not in old.tokens))
            places[place] = Ours(tokens, new.made or old.made, new.top or old.top)
        return Record(places)


def _ours(data: Mapping[str, Any]) -> Ours:
    return Ours(
        tuple(str(token) for token in data["tokens"]),
        str(data.get("made", "")),
        str(data.get("top", "")),
    )
