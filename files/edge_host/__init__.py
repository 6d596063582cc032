"""edge-host: makes a new configuration of this host live, proves it, goes back if it fails.

    edge-host activate < request.json    switch, restart what differs, prove; on failure go back
    edge-host probe    < request.json    only prove that the host serves; changes nothing

The result is one line of JSON on stdout (and, for activate, in /var/lib/edge-llm/
last-activation.json); the exit status is 0 when the wanted configuration serves, otherwise 1.
Every step may be repeated: a run that was killed at any point is healed by the next one.
Python 3.10 or later, standard library only: it runs on hosts that have nothing else.

A host gets it as one file, a zip application (edge/agent.py). A rollout may replace that file
while it runs, so every module is imported at the start, none later.
"""
