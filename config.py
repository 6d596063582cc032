"""pyinfra executes this before it reads the inventory; edge/pyinfra_patches.py says why."""

from pyinfra import config

from edge import pyinfra_patches

config.REQUIRE_PYINFRA_VERSION = "~=3.10.0"
config.CONNECT_TIMEOUT = 10  # seconds; a Pi on wireless answers within three

pyinfra_patches.install()
