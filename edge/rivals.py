"""What else sets governor and energy preference on a host: one table. Pure data.

What runs once at boot is simply followed: our oneshot and its timer have the last word. A daemon
that stays would set its own values back at any time; it is reported, and stopped where
`take_over_power_daemons` says so. One that D-Bus can start is masked: disabled, it would come back
as soon as a program asks for its name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rival:
    """A unit that sets what we set."""

    unit: str
    sets: str
    stop: str
    """"mask", "disable", or "" where nothing has to be stopped: it runs once at boot."""
    ordered: bool = False
    """Whether our oneshot waits for it at boot. Only what an init script is made into: systemd
    orders such units before multi-user.target, so that waiting for them cannot be a cycle."""


RIVALS = (
    Rival("power-profiles-daemon.service", "energy preference and platform profile", "mask"),
    Rival("tuned.service", "governor and energy preference", "mask"),
    Rival("tuned-ppd.service", "tuned's profile", "mask"),
    Rival("tlp.service", "governor and energy preference", "disable"),
    Rival("tlp-pd.service", "tlp's profile", "mask"),
    Rival("auto-cpufreq.service", "governor, every few seconds", "disable"),
    Rival("cpufreqd.service", "governor", "disable"),
    Rival("com.system76.PowerDaemon.service", "governor and energy preference", "mask"),
    Rival("laptop-mode.service", "governor", "disable"),
    Rival("cpupower.service", "governor, once at boot", ""),
    Rival("ondemand.service", "governor, once at boot", ""),
    Rival("cpufrequtils.service", "governor, once at boot", "", ordered=True),
    Rival("loadcpufreq.service", "governor, once at boot", "", ordered=True),
    # Raspberry Pi OS bookworm: sets ondemand at every boot.
    Rival("raspi-config.service", "governor, once at boot", "", ordered=True),
)
BY_UNIT = {rival.unit: rival for rival in RIVALS}
STOPPED = tuple(rival for rival in RIVALS if rival.stop)
ORDERED = tuple(rival.unit for rival in RIVALS if rival.ordered)
