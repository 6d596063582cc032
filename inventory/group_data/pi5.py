"""Raspberry Pi 5: four cores; one slot with 4 GB of memory, two with 8 GB.

Nothing has to be set here. C-states do not apply to a Pi, and the memory limit needs one reboot
(which reboot = "if_needed" does): Raspberry Pi OS starts without the memory cgroup. Uncomment what
you want otherwise.
"""

# Memory is what limits a Pi's speed, and two threads may be as fast as three: measure, then set.
# threads = 2

# SD cards wear out by writing. The journal's upper bound:
# journal_max_mib = 64

# A Pi that nobody can reach: its hardware restarts it when it hangs. 15 is the most that it takes.
# hardware_watchdog_s = 15
