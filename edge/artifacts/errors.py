"""What goes wrong while an artifact is fetched, built or packed."""

from __future__ import annotations


class ArtifactError(Exception):
    """An artifact cannot be had. The text says what is wrong, where, and the way out."""
