"""Your hosts. This is what `pyinfra inventory deploy.py` rolls out to.

A host is an address or a name, alone or with data of its own. The three groups name classes of
hardware: put each host into one. A host that is in none is classed by what it is found to be.

The addresses below are examples (they are reserved for documentation): replace them with yours.
How to log in, and whatever else holds for all hosts, stands in group_data/all.py; docs/settings.md
lists every setting. `edge plan inventory` shows what would run where, and changes nothing.
"""

n100 = [
    "192.0.2.11",
    # A name of your choice, where it is found, and a setting of this host alone.
    ("kiosk-entrance", {"ssh_hostname": "192.0.2.12", "system_prompt": "You guide visitors."}),
]

ryzen = [
    # A host's own data wins over its group's.
    ("192.0.2.21", {"slots": 2, "context_per_slot": 4096}),
]

pi5 = [
    ("198.51.100.31", {"ssh_user": "pi"}),
]
