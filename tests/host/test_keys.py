"""Who may ask: engine and proxy refuse whoever has no key, and the keys stay where they are.

The engine's key is read on the host only; what comes back from there are statuses and names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from checks import Say, Wrong, expect
from machine import ENGINE, PROXY, Machine
from test_network import listeners

from edge.access import only_this_host
from edge.plan import HostPlan
from edge.render import API_KEYS, ENGINE_ENV, Rendered, desired_state

ORIGIN = "https://elsewhere.example"
# GETs: none of them generates anything.
ENGINE_PATHS = ("/v1/models", "/props", "/slots", "/metrics")
PROXY_PATHS = ("/v1/models", "/metrics")
KINDS = ("none", "wrong", "host")
ASK = """
import http.client, json, sys, urllib.parse
try:
    key = open(sys.argv[1]).read().strip().partition("=")[2]
except OSError:
    key = ""
def ask(url, path, headers):
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        return [answer.status, answer.getheader("WWW-Authenticate", ""),
                answer.getheader("Access-Control-Allow-Origin", "")]
    except (OSError, http.client.HTTPException) as error:
        return [0, type(error).__name__, ""]
    finally:
        connection.close()
sent = {"none": {}, "page": {"Origin": sys.argv[2]}, "wrong": {"Authorization": "Bearer x"},
        "host": {"Authorization": "Bearer " + key}}
print(json.dumps([ask(url, path, sent[kind]) for url, path, kind in json.loads(sys.argv[3])]))
"""
# Patterns come by a descriptor of their own: what is in argv, every user sees.
SEARCH = """
key=$(sed -n 's/^LLAMA_API_KEY=//p' %s)
[ -n "$key" ] || exit 0
has() { grep -laF -f /dev/fd/3 "$@" 3<<END 2>/dev/null
$key
END
}
has /proc/[0-9]*/cmdline
for f in $(has /proc/[0-9]*/environ); do
  case $(stat -c %%U $f) in root|edge-llm) ;; *) echo $f;; esac
done
find /etc/edge-llm /etc/systemd /run/systemd /var/lib/edge-llm /opt/edge-llm/bin -type f \
  ! -path %s 2>/dev/null | while read -r f; do has "$f"; done
journalctl -b -q -o export --no-pager 2>/dev/null | has >/dev/null && echo "the journal"
:
"""


@dataclass(frozen=True)
class Reply:
    """The status of an answer (0: none came), and two of its headers."""

    status: int
    authenticate: str
    allowed_origin: str

    @property
    def words(self) -> str:
        """As a person reads it; `authenticate` says why where no answer came."""
        return f"status {self.status}" if self.status else f"no connection ({self.authenticate})"


@cache
def _replies(machine: Machine, engine: str, proxy: str) -> dict[tuple[str, str, str], Reply]:
    """Everything that is asked, in one round trip. A proxy that does not run is not asked: its
    socket would start it."""
    asked = []
    if machine.runs(ENGINE):
        asked += [(engine, path, kind) for path in ENGINE_PATHS for kind in KINDS]
        asked += [(engine, "/health", "none"), (engine, "/v1/models", "page")]
    if machine.runs(PROXY):
        # Who is let in waits for an engine that is away.
        kinds = KINDS if machine.runs(ENGINE) else ("none", "wrong")
        asked += [(proxy, path, kind) for path in PROXY_PATHS for kind in kinds]
        asked += [(proxy, path, "none") for path in ("/healthz", "/readyz")]
    out = machine.run("python3 -I -c %s %s %s %s", ASK, ENGINE_ENV, ORIGIN, json.dumps(asked))
    return {tuple(each): Reply(*reply) for each, reply in zip(asked, json.loads(out), strict=True)}


class _Asked:
    """The answers of engine and proxy to whoever asks on the host itself."""

    def __init__(self, machine: Machine, plan: HostPlan, rendered: Rendered) -> None:
        desired = desired_state(plan, rendered)
        self.urls = {ENGINE: desired["engine_url"], PROXY: desired["proxy_url"]}
        self._machine = machine
        self._found = _replies(machine, *self.urls.values())

    def reply(self, unit: str, path: str, key: str) -> Reply:
        """Raises Down where who was to be asked does not run."""
        self._machine.need(unit)
        return self._found[self.urls[unit], path, key]

    def expect(self, status: int, unit: str, path: str, key: str, remedy: str | None) -> None:
        words = {"none": "without a key", "wrong": "with a wrong key", "host": "with its key"}
        where = f"GET {self.urls[unit]}{path} {words[key]}, on the host"
        expect(f"status {status}", self.reply(unit, path, key).words, where, remedy)


def test_engine_refuses_without_its_key(
    machine: Machine, plan: HostPlan, rendered: Rendered
) -> None:
    asked = _Asked(machine, plan, rendered)
    for path in ENGINE_PATHS:
        for key in ("none", "wrong"):
            asked.expect(401, ENGINE, path, key, None)
        asked.expect(200, ENGINE, path, "host", None)
    asked.expect(200, ENGINE, "/health", "none", None)


def test_engine_shuts_out_pages_of_other_sites(
    machine: Machine, plan: HostPlan, rendered: Rendered
) -> None:
    """A browser on the host, too, gives its answers to no page."""
    asked = _Asked(machine, plan, rendered)
    allowed = asked.reply(ENGINE, "/v1/models", "page").allowed_origin
    if allowed in ("*", ORIGIN):
        where = f"Access-Control-Allow-Origin of {asked.urls[ENGINE]} for a page of {ORIGIN}"
        raise Wrong("another origin, or none", allowed, where)


def test_proxy_asks_for_keys_as_planned(
    machine: Machine, plan: HostPlan, rendered: Rendered, say: Say
) -> None:
    machine.need(ENGINE, PROXY)
    asked = _Asked(machine, plan, rendered)
    closed = plan.proxy.keys is not None
    see = f"journalctl -u {PROXY}; the next rollout restarts it if it runs with other settings"
    for path in PROXY_PATHS:
        for key in ("none", "wrong"):
            asked.expect(401 if closed else 200, PROXY, path, key, see)
        asked.expect(200, PROXY, path, "host", see)
        if closed:
            found = asked.reply(PROXY, path, "none").authenticate
            expect("Bearer", found, f"WWW-Authenticate of {asked.urls[PROXY]}{path}", see)
    for path in ("/healthz", "/readyz"):
        asked.expect(200, PROXY, path, "none", see)
    say.found(plan.reasons["proxy.access"])


def test_a_network_needs_a_key(
    machine: Machine, plan: HostPlan, rendered: Rendered, say: Say
) -> None:
    """By the sockets that the proxy really has, whatever was planned."""
    open_to = sorted(
        address
        for address in {each.address for each in listeners(machine, machine.proxy)}
        if not only_this_host(address)
    )
    if not open_to:
        say.found("it serves the host itself only")
        return
    asked = _Asked(machine, plan, rendered)
    for path in PROXY_PATHS:
        reply = asked.reply(PROXY, path, "none")
        if reply.status != 401:
            raise Wrong(
                "status 401 for whoever has no key", f"{reply.words}: the network may ask",
                f"{PROXY} listens on {', '.join(open_to)}; GET {path} without a key",
            )  # fmt: skip
    say.found(f"{', '.join(open_to)}: {plan.reasons['proxy.access']}")


def test_files_of_keys_are_closed(machine: Machine, plan: HostPlan) -> None:
    """Nothing of the key itself is read here, only whether the file's one line is one."""
    out = machine.run(
        "if [ -f %s ]; then stat -c '%%a %%U:%%G' %s; "
        "grep -cvx 'LLAMA_API_KEY=[0-9a-f]\\{64\\}' %s; wc -l < %s; fi; :",
        *[ENGINE_ENV] * 4,
    )
    expect(["600 root:root", "0", "1"], out.split("\n"), f"{ENGINE_ENV}: mode, other lines, lines")
    if plan.proxy.keys is None and machine.exists(API_KEYS):
        raise Wrong("no file: no keys are asked for", "a file", API_KEYS)


def test_services_run_with_the_hosts_key(machine: Machine) -> None:
    for process in (machine.engine, machine.proxy):
        same = machine.run(
            "tr '\\000' '\\n' < /proc/%s/environ | grep '^LLAMA_API_KEY=' | "
            "cmp -s - %s && echo same || echo other",
            str(process.pid), ENGINE_ENV,
        )  # fmt: skip
        expect("same", same, f"LLAMA_API_KEY in /proc/{process.pid}/environ and {ENGINE_ENV}")


def test_engines_key_is_nowhere_else(machine: Machine) -> None:
    """Neither in a command line, nor in others' environments, files of ours or the journal."""
    found = machine.run(SEARCH, ENGINE_ENV, ENGINE_ENV)
    if found:
        raise Wrong(
            f"the engine's key in {ENGINE_ENV} only",
            found.replace("\n", ", "),
            "a search on the host",
            f"see how it came there; rm {ENGINE_ENV}, and the next rollout makes another",
        )  # fmt: skip
