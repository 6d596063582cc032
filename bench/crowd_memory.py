"""Memory of engine and proxy on a host while something goes on: from their control groups."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20
UNITS = ("llama-server", "chat-proxy")

# One line a unit and look: unit, main process, bytes charged to its group, bytes of its own
# (without page cache, which can be given back), its limit; control groups of version 2, else 1.
_SCRIPT = """
while :; do
  for unit in llama-server chat-proxy; do
    pid=$(systemctl show -P MainPID "$unit")
    [ "$pid" != 0 ] || continue
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
      dir=/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$pid/cgroup")
      used=memory.current own=anon limit=memory.max
    else
      dir=/sys/fs/cgroup/memory$(sed -n 's/^[0-9]*:memory://p' "/proc/$pid/cgroup")
      used=memory.usage_in_bytes own=total_rss limit=memory.limit_in_bytes
    fi
    own=$(sed -n "s/^$own //p" "$dir/memory.stat")
    echo "$unit $pid $(cat "$dir/$used") $own $(cat "$dir/$limit")"
  done
  sleep 1
done
"""


@dataclass
class Service:
    """What was seen of one service: a sample is (seconds, bytes of its group, bytes of its own)."""

    limit: int = 0
    pids: list[str] = field(default_factory=list)
    samples: list[tuple[float, int, int]] = field(default_factory=list)

    @property
    def restarts(self) -> int:
        return max(0, len(self.pids) - 1)

    def figures(self) -> dict[str, Any]:
        """In MiB; the slope, in MiB a minute, is that of the later half."""
        own = [sample[2] for sample in self.samples]
        return {
            "limit_mib": round(self.limit / MIB),
            "first_mib": round(own[0] / MIB, 1),
            "peak_mib": round(max(own) / MIB, 1),
            "last_mib": round(own[-1] / MIB, 1),
            "peak_with_page_cache_mib": round(max(one[1] for one in self.samples) / MIB, 1),
            "slope_mib_per_minute": round(_slope(self.samples[len(own) // 2 :]), 3),
            "restarts": self.restarts,
        }


def _slope(samples: Sequence[tuple[float, int, int]]) -> float:
    """Least squares through a service's own memory, in MiB a minute."""
    if len(samples) < 3:
        return 0.0
    times = [sample[0] / 60 for sample in samples]
    sizes = [sample[2] / MIB for sample in samples]
    middle, mean = sum(times) / len(times), sum(sizes) / len(sizes)
    spread = sum((t - middle) ** 2 for t in times)
    return sum((t - middle) * (size - mean) for t, size in zip(times, sizes, strict=True)) / spread


@contextmanager
def watched(ssh: Sequence[str]) -> Iterator[dict[str, Service]]:
    """Look once a second, by one SSH connection, until the block is left."""
    services = {unit: Service() for unit in UNITS}
    looking = subprocess.Popen(
        [*ssh, "sudo", "sh", "-s"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert looking.stdin is not None
    looking.stdin.write(_SCRIPT)
    looking.stdin.close()
    reader = threading.Thread(target=_read, args=(looking, services), daemon=True)
    reader.start()
    try:
        yield services
    finally:
        looking.terminate()  # the loop on the host ends when it writes into nothing
        looking.wait()
        reader.join()


def _read(looking: subprocess.Popen[str], services: dict[str, Service]) -> None:
    assert looking.stdout is not None
    for line in looking.stdout:
        unit, pid, used, own, limit = line.split()
        service = services[unit]
        service.limit = int(limit)
        if pid not in service.pids:
            service.pids.append(pid)
        service.samples.append((time.monotonic(), int(used), int(own)))
