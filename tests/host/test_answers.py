"""Answers, streamed: on the host itself, and over the network where the proxy serves it."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

import pytest
from checks import Say, Wrong
from machine import ENGINE, PROXY, Machine

from edge.access import only_this_host
from edge.plan import HostPlan
from edge.render import AGENT, Rendered, desired_state

QUESTION = {"prompt": "Say hello in one short sentence.", "max_tokens": 24}
TIMEOUT_S = 60  # a Pi that is busy with four others answers within 20
SEE = "journalctl -u chat-proxy.service -u llama-server.service on the host"


def test_streams_on_the_host(
    machine: Machine, plan: HostPlan, rendered: Rendered, say: Say
) -> None:
    machine.need(ENGINE, PROXY)
    request = json.dumps(desired_state(plan, rendered))
    status, out, error = machine.try_run(f"printf '%%s' %s | {AGENT} probe", request)
    try:
        result = json.loads(out.splitlines()[-1])
    except (ValueError, IndexError):
        raise Wrong("a result", f"exit status {status}: {error}", f"{AGENT} probe") from None
    if not result["ok"]:
        raise Wrong("a streamed answer", result["reason"], f"{AGENT} probe", SEE)
    gate = result["gate"]
    if gate["tokens"] < 2:
        raise Wrong("more than one token", gate["tokens"], f"{AGENT} probe", SEE)
    say.found(f"first token {gate['first_token_ms']} ms, {gate['tokens_per_s']} tokens/s")


def test_answers_over_the_network(
    machine: Machine, plan: HostPlan, key: str | None, pytestconfig: pytest.Config, say: Say
) -> None:
    """Whoever has no key is refused; whoever has one (`--key-file`) gets a stream."""
    listen = ip_address(plan.proxy.listen)
    if only_this_host(plan.proxy.listen):
        say.note("n/a: it serves the host itself only (proxy_listen)")
        return
    machine.need(ENGINE, PROXY)
    address = machine.login.hostname if listen.is_unspecified else str(listen)
    try:
        socket.getaddrinfo(address or "localhost", plan.proxy.port)
    except OSError:
        say.note(f"n/a: {address} is a name of ssh's only; checked on the host itself")
        return
    where = f"http://{address}:{plan.proxy.port}/chat"
    with _ask(address or "localhost", plan.proxy.port, None) as answer:
        if answer.status != 401:
            raise Wrong("status 401 for whoever has no key", f"status {answer.status}", where, SEE)
    if key is None:
        say.found("it refuses whoever has no key; with --key-file it is asked for a stream, too")
        return
    with _ask(address or "localhost", plan.proxy.port, key) as answer:
        kind = answer.headers.get_content_type()
        if answer.status != 200 or kind != "text/event-stream":
            body = answer.read(2000).decode(errors="replace")
            type_, said = _error(body)
            remedy = why_not(answer.status, type_, pytestconfig.getoption("key_file"))
            raise Wrong("an event stream", f"status {answer.status}, {kind}: {said}", where, remedy)
        events = [json.loads(line[5:]) for line in answer if line.startswith(b"data:")]
    if events and "error" in events[-1]:
        raise Wrong("an answer", events[-1]["error"]["message"], where, SEE)
    texts = [event["text"] for event in events if event.get("text")]
    if len(texts) < 2 or not "".join(texts).strip():
        raise Wrong("text in more than one event", f"{len(texts)} events with text", where, SEE)
    if not events[-1].get("done"):
        raise Wrong("a last event that says done", events[-1], where, SEE)
    say.found(f"{len(texts)} events: {''.join(texts).strip()[:60]!r}")


def _error(body: str) -> tuple[str, str]:
    """Type and message of the proxy's error, or what came instead."""
    try:
        error = json.loads(body)["error"]
        return error["type"], error["message"]
    except (ValueError, KeyError, TypeError):
        return "", body[:300]


def why_not(status: int, kind: str, key_file: str) -> str:
    """What to do about an answer that a valid question did not get: the key may be at fault."""
    if status == 401:
        return (
            f"the key in {key_file} is not in force on this host: see `edge key list`, and roll out"
        )
    if kind == "rate_limited":
        return f"give verify a key without a rate: the one in {key_file} has used up its own"
    if status == 429:
        return "the host has as many questions as it takes: once more, when it has fewer"
    return SEE


@contextmanager
def _ask(address: str, port: int, key: str | None) -> Iterator[http.client.HTTPResponse]:
    """The answer to one question."""
    connection = http.client.HTTPConnection(address, port, timeout=TIMEOUT_S)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        connection.request("POST", "/chat", json.dumps(QUESTION), headers)
        yield connection.getresponse()
    except OSError as error:
        remedy = "is there a firewall between here and the host, or on it?"
        where = f"http://{address}:{port}/chat"
        raise Wrong("an answer", f"{error}", where, remedy) from None
    finally:
        connection.close()
