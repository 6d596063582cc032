"""The base tree of the containers: a minimal Debian server, built once and shared by overlays."""

from __future__ import annotations

import tempfile
from pathlib import Path

from lab.debian import SERVER, SERVER_SETUP, SUITE, Recipe, native_architecture, only_one
from lab.paths import Lab
from lab.progress import step


def ensure(lab: Lab) -> Path:
    """The image's tree, built first if this recipe has not been built on this machine."""
    recipe = Recipe(native_architecture(), SERVER, SERVER_SETUP)
    image = lab.images / f"{SUITE}-{recipe.architecture}-{recipe.digest}"
    if image.is_dir():
        return image
    with only_one(lab.images / "lock"):
        if not image.is_dir():
            with step(f"building the Debian {SUITE} image (about a minute, once)"):
                _build(recipe, image)
    return image


def _build(recipe: Recipe, image: Path) -> None:
    # A directory of its own, renamed when complete: a killed build leaves nothing that is used.
    with tempfile.TemporaryDirectory(dir=image.parent, prefix="building-") as scratch:
        tree = Path(scratch) / "tree"
        recipe.build(tree)
        tree.rename(image)
