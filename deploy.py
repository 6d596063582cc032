"""The rollout of one host, read top to bottom: one line a step.

pyinfra inventory deploy.py
"""

from edge.prepare import prepared
from edge.steps.boot import boot
from edge.steps.engine import engine
from edge.steps.gate import gate
from edge.steps.model import model
from edge.steps.preflight import preflight
from edge.steps.proxy import proxy
from edge.steps.reboot import reboot
from edge.steps.services import services
from edge.steps.tuning import tuning

# All hosts' settings are valid and all plans are solved before the first step of any host.
ready = prepared()

if ready:
    preflight(ready)
    tuning(ready)
    boot(ready)
    model(ready)
    engine(ready)
    proxy(ready)
    services(ready)
    gate(ready)
    reboot(ready)
