"""The lab's own part inside a machine, and talking to it.

On its first boot a machine finishes its disk, says that it has booted, and waits: that is when it
is frozen. Each copy that is resumed is then told who it is. Nothing of this runs at a later boot.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.debian import LAB_DIRECTORY
from lab.machine import qmp
from lab.machine.qemu import ADDRESS, CHANNEL, CHANNEL_NAME, CONSOLE, GATEWAY, LOG
from lab.paths import LabError
from lab.power import last_words

_UNIT = "lab-first-boot.service"
#: What a class of machine has to do on its disk once it runs; sh. Written by its image's recipe.
FINISH = f"{LAB_DIRECTORY}/finish"
_READY, _DONE = b"ready", b"done"

# A read ends at once while nobody is connected outside; so does one across a freeze.
_FIRST_BOOT = f"""\
#!/bin/sh
# The lab's: finishes this disk, then waits to be told which host this is.
set -eu
exec 3<>/dev/virtio-ports/{CHANNEL_NAME}
sh -eu {FINISH} > /dev/console 2>&1
rm -f /etc/systemd/system/{_UNIT} /etc/systemd/system/multi-user.target.wants/{_UNIT}
systemctl daemon-reload
rm -rf {LAB_DIRECTORY}
while :; do
  case $(systemctl is-system-running) in
    initializing | starting) sleep 1 ;;
    *) break ;;
  esac
done
sync
echo {_READY.decode()} >&3
script=
while [ "${{line:-}}" != . ]; do
  script="$script
${{line:-}}"
  while ! read -r line <&3; do sleep 0.2; done
done
sh -eu -c "$script" > /dev/console 2>&1
echo {_DONE.decode()} >&3
"""

# \\x2d: a dash, in the name that systemd gives a device's unit.
_DEVICE = f"dev-virtio\\x2dports-{CHANNEL_NAME}.device"
_UNIT_TEXT = f"""\
[Unit]
Description=The lab's first boot
After={_DEVICE}
Wants={_DEVICE}

[Service]
ExecStart=/bin/sh {LAB_DIRECTORY}/first-boot
"""

#: For a recipe's setup: what every machine has beyond a server's packages. The host key is for
#: sshd to start with; nobody can log in before the host gets its own.
SETUP = f"""
mkdir -p {LAB_DIRECTORY}
cat > {LAB_DIRECTORY}/first-boot <<'EOF'
{_FIRST_BOOT}EOF
cat > /etc/systemd/system/{_UNIT} <<'EOF'
{_UNIT_TEXT}EOF
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -s ../{_UNIT} /etc/systemd/system/multi-user.target.wants/{_UNIT}
ssh-keygen -q -t ed25519 -N '' -C lab -f /etc/ssh/ssh_host_ed25519_key
mkdir -p /etc/systemd/network
cat > /etc/systemd/network/20-wired.network <<'EOF'
[Match]
Name=en* eth*
[Network]
Address={ADDRESS}/24
Gateway={GATEWAY}
EOF
systemctl enable -q systemd-networkd.service
systemctl mask -q systemd-networkd-wait-online.service
echo edge > /etc/hostname
printf '127.0.0.1\\tlocalhost\\n127.0.1.1\\tedge\\n' > /etc/hosts
apt-cache gencaches > /dev/null
"""


@dataclass(frozen=True)
class Identity:
    """What makes a resumed machine one host. host_key: the private key file's content."""

    name: str
    machine_id: str
    host_key: str
    host_key_public: str
    authorized_key: str

    def script(self, now: float) -> str:
        """sh for the machine, which begins by setting its clock to now (seconds since 1970)."""
        hosts = f"127.0.0.1\tlocalhost\n127.0.1.1\t{self.name}\n"
        key, home = "/etc/ssh/ssh_host_ed25519_key", "/home/edge/.ssh"
        files = {
            "/etc/hostname": f"{self.name}\n",
            "/etc/hosts": hosts,
            f"{key}.pub": self.host_key_public,
            f"{home}/authorized_keys": f"{self.authorized_key}\n",
        }
        return "\n".join(
            [
                f"date -s @{now:.3f}",
                *(f"printf %s {shlex.quote(text)} > {path}" for path, text in files.items()),
                f"hostname {shlex.quote(self.name)}",
                # Rewritten in place: it keeps its mode (0600).
                f"printf %s {shlex.quote(self.host_key)} > {key}",
                f"chown edge:edge {home}/authorized_keys",
                f"echo {self.machine_id} > /etc/machine-id",
                # The journal is filed under the machine's id.
                "rm -rf /var/log/journal/*",
                "systemctl restart systemd-journald.service",
                "systemctl reload ssh.service",
                "sync",
            ]
        )


class Channel:
    """The lab's serial line into a machine; `alive` raises when the machine has ended."""

    def __init__(self, directory: Path, alive: Callable[[], None]) -> None:
        self._directory, self._alive = directory, alive
        self._socket = qmp.connect(directory / CHANNEL, alive)
        self._socket.settimeout(0.5)

    def await_ready(self, timeout_s: float) -> None:
        """Wait until the first boot is over; raises LabError if it takes longer."""
        self._await(_READY, timeout_s, "has not booted")

    def tell(self, identity: Identity, timeout_s: float) -> None:
        """Make a machine that is ready this host; raises LabError if it takes longer."""
        script = identity.script(time.time())
        self._socket.sendall(f"{script}\n.\n".encode())
        self._await(_DONE, timeout_s, "did not take its name and keys")

    def _await(self, word: bytes, timeout_s: float, what: str) -> None:
        end, heard = time.monotonic() + timeout_s, b""
        while word not in heard.split():
            if time.monotonic() > end:
                raise LabError(f"the machine {what} in {timeout_s:.0f} s")
            try:
                more = self._socket.recv(4096)
            except TimeoutError:
                self._alive()
                continue
            except ConnectionResetError:
                more = b""
            if not more:
                raise LabError(f"the machine {what}: {self._last_words()}")
            heard += more

    def _last_words(self) -> str:
        return last_words(self._directory / LOG, self._directory / CONSOLE)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
