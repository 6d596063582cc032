"""From pyinfra's connection data of a host to ssh's command line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A socket's path may have 107 characters, of which ssh adds a hash and a temporary ending.
_LONGEST_SCRATCH = 107 - len("/0123456789012345678901234567890123456789.0123456789abcdef")
_PASSWORDS = {
    "ssh_password": "log in with a key (ssh_key, or ssh-agent)",
    "ssh_key_password": "add the key to ssh-agent, and leave ssh_key_password out",
    "_sudo_password": "allow this user NOPASSWD, or log in as root",
}
_OTHER_WAYS = ("_su_user", "_doas", "_sudo_user")


class LoginError(ValueError):
    """The checks cannot log in the way pyinfra does; the text says what to do."""


@dataclass(frozen=True)
class Login:
    """How to reach a host: `remote` False is this machine itself."""

    remote: bool
    sudo: bool
    hostname: str = ""
    options: tuple[tuple[str, str], ...] = ()
    config: str = ""
    key: str = ""

    @classmethod
    def of(cls, name: str, data: Mapping[str, Any]) -> Login:
        """From a host's name and pyinfra data.

        Raises:
            LoginError: it logs in by a way that is not supported here.
        """
        for key, remedy in _PASSWORDS.items():
            if data.get(key):
                raise LoginError(f"the checks take no passwords ({key} is set): {remedy}")
        if other := [key for key in _OTHER_WAYS if data.get(key)]:
            raise LoginError(f"the checks read as root, by login or by sudo, not by {other[0]}")
        sudo = bool(data.get("_sudo"))
        if name == "@local":
            return cls(remote=False, sudo=sudo)
        if name.startswith("@") and not name.startswith("@ssh/"):
            raise LoginError("the checks reach hosts over SSH, and @local")
        strict = str(data.get("ssh_strict_host_key_checking") or "accept-new")
        options = {"BatchMode": "yes", "ConnectTimeout": "10", "LogLevel": "ERROR",
                   "StrictHostKeyChecking": strict}  # fmt: skip
        if known := data.get("ssh_known_hosts_file"):
            options["UserKnownHostsFile"] = str(Path(str(known)).expanduser())
        if user := data.get("ssh_user"):
            options["User"] = str(user)
        if port := data.get("ssh_port"):
            options["Port"] = str(port)
        key = data.get("ssh_key")
        if key:
            options["IdentitiesOnly"] = "yes"
        if data.get("ssh_allow_agent") is False:
            options["IdentityAgent"] = "none"
        return cls(
            remote=True,
            sudo=sudo,
            hostname=str(data.get("ssh_hostname") or name.removeprefix("@ssh/")),
            options=tuple(options.items()),
            config=_expanded(data.get("ssh_config_file")),
            key=_expanded(key),
        )

    @property
    def url(self) -> str:
        """For testinfra. User and port are among the options."""
        if not self.remote:
            return "local://"
        return f"ssh://[{self.hostname}]" if ":" in self.hostname else f"ssh://{self.hostname}"

    def arguments(self, scratch: str) -> list[str]:
        """ssh's words before the host; commands share one connection, through a socket below
        `scratch`."""
        words = ["-F", self.config] if self.config else []
        words += ["-i", self.key] if self.key else []
        for name, value in self.options:
            words += ["-o", f"{name}={value}"]
        if len(scratch) <= _LONGEST_SCRATCH:
            words += ["-o", "ControlMaster=auto", "-o", "ControlPersist=60"]
            words += ["-o", f"ControlPath={scratch}/%C"]
        else:
            words += ["-o", "ControlMaster=no"]
        return words


def _expanded(path: object) -> str:
    return str(Path(str(path)).expanduser()) if path else ""
