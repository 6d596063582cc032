"""The benchmark of the proxy: its statistics, its files, and that each system serves a stream."""

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench.proxy import load, processes, report, script
from bench.proxy.figures import MEASURES, Run, nothing, percentile, row
from bench.proxy.load import Delays
from bench.proxy.run import CASES, Case, measure
from bench.proxy.systems import SYSTEMS, litellm_folder

REQUIRED = ("direct", "edge", "haproxy", "litellm", "recipe")
CASE_NAMES = ("1", "50", "200", "50-burst")


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([7.0], 0.95, 7.0),
        ([1.0, 2.0], 0.5, 1.5),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([float(n) for n in range(101)], 0.95, 95.0),
        ([0.0, 10.0], 0.95, 9.5),
    ],
)
def test_percentile(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == pytest.approx(expected)


def test_a_percentile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="of nothing"):
        percentile([], 0.5)


def run(first: float, errors: int = 0, cpu_s: float = 1.0, peak: float = 50.0) -> Run:
    lost = {"status 500": errors} if errors else {}
    return Run(Delays([first], [first * 2], 500, lost), cpu_s, peak)


def test_a_row_has_medians_of_the_repeats_and_all_their_errors() -> None:
    found = row([run(1.0, 2), run(9.0, cpu_s=3.0, peak=80.0), run(2.0, 1, cpu_s=2.0)])
    assert found == {
        "added_first_token_p50_ms": 2.0,
        "added_first_token_p95_ms": 2.0,
        "added_token_p50_ms": 4.0,
        "added_token_p95_ms": 4.0,
        "cpu_s_per_1000_tokens": 4.0,
        "peak_rss_mib": 50.0,
        "errors": 3,
    }


def test_a_repeat_in_which_nothing_was_served_takes_no_part_in_the_medians() -> None:
    dead = Run(Delays(errors={"Connection refused": 50}), 0.0, 0.0)
    found = row([dead, run(4.0), run(6.0)])
    assert (found["added_first_token_p50_ms"], found["peak_rss_mib"]) == (5.0, 50.0)
    assert found["errors"] == 50
    assert row([dead]) == nothing(50)


def test_the_file_has_the_shape_that_was_asked_for(tmp_path: Path) -> None:
    assert set(REQUIRED) <= set(SYSTEMS)
    assert tuple(CASES) == CASE_NAMES
    results = {
        name: {case: row([run(1.0)]) if name != "litellm" else nothing(1) for case in CASES}
        for name in SYSTEMS
    }
    report.write(tmp_path / "proxy.json", results, {"repeats": 1})
    written = json.loads((tmp_path / "proxy.json").read_text())
    for name in REQUIRED:
        for case in CASE_NAMES:
            assert list(written[name][case]) == [*MEASURES, "errors"]
    assert json.loads((tmp_path / "proxy.about.json").read_text()) == {"repeats": 1}


def test_the_table_tells_ratios_and_what_could_not_be_had() -> None:
    results = {
        "direct": {"1": row([run(0.5, cpu_s=0.0, peak=0.0)])},
        "edge": {"1": row([run(2.0)])},
        "recipe": {"1": row([run(6.0)])},
        "litellm": {"1": nothing(1)},
    }
    with Path("/dev/null").open("w") as sink:
        console = Console(width=110, record=True, file=sink)
        report.show(results, {"litellm": "no wheel for [this] machine"}, console)
    text = console.export_text()
    assert "litellm could not be had: no wheel for [this] machine" in text
    rows = re.findall(r"│ recipe .*\n│ .*", text)
    assert "6.0" in rows[0]
    assert "3.0 · 12" in rows[0]


def test_the_page_has_the_results_that_are_filed() -> None:
    filed = json.loads((processes.CHECKOUT / "bench" / "results" / "proxy.json").read_text())
    page = (processes.CHECKOUT / "docs" / "benchmarks.md").read_text()
    assert report.markdown(filed) in page, "docs/benchmarks.md: run make bench-proxy"


def test_results_go_between_the_marks_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- bench-proxy -->\nold\n<!-- /bench-proxy -->\nbelow\n")
    results = {"direct": {"1": row([run(0.5)])}, "litellm": {"1": nothing(1)}}
    report.into(page, results)
    assert page.read_text().splitlines() == [
        "above",
        "<!-- bench-proxy -->",
        "| streams | system | 1st token P50 ms | 1st token P95 ms | a token P50 ms | "
        "a token P95 ms | CPU s /1000 tokens | peak MiB | errors |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
        "| 1 | direct | 0.5 | 0.5 | 1.00 | 1.00 | - | - | 0 |",
        "| 1 | litellm | - | - | - | - | - | - | 1 |",
        "<!-- /bench-proxy -->",
        "below",
    ]
    page.write_text("no marks")
    with pytest.raises(ValueError, match="no <!-- bench-proxy -->"):
        report.into(page, results)


def tokens(stream: int, count: int) -> str:
    texts = (
        f"<{stream}.{n} {1000 + n} 900>{script.WORDS[n % len(script.WORDS)]}" for n in range(count)
    )
    return "".join(texts)


def test_a_text_is_read_in_any_pieces_and_a_token_has_the_time_that_completed_it() -> None:
    text = tokens(3, 25)
    for size in (1, 2, 7, len(text)):
        reader = script.Reader(3)
        for at in range(0, len(text), size):
            reader.feed(text[at : at + size], at + size)
        reader.end(25)
        assert reader.tokens[0][:2] == (1000, 900)
        first = len(f"<3.0 1000 900>{script.WORDS[0]}")
        assert reader.tokens[0][2] == -(-first // size) * size


@pytest.mark.parametrize(
    "spoilt",
    [
        tokens(3, 24),
        tokens(3, 25) + "x",
        tokens(4, 25),
        tokens(3, 25).replace("边缘", "è¾¹"),
        tokens(3, 25).replace("🙂", "\ufffd"),
        tokens(3, 12) + tokens(3, 25)[len(tokens(3, 13)) :],
    ],
    ids=["short", "long", "another stream's", "mojibake", "a character lost", "a token lost"],
)
def test_a_text_that_is_not_the_engines_is_found(spoilt: str) -> None:
    reader = script.Reader(3)
    with pytest.raises(script.Wrong):  # noqa: PT012 (at once, or at the end)
        reader.feed(spoilt, 1)
        reader.end(25)


class Server:
    """Answers every connection with the same bytes, and closes it."""

    def __init__(self, answer: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._answer = answer
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                conn, _ = self._listener.accept()
            except OSError:
                return
            with conn:
                conn.recv(65536)
                conn.sendall(self._answer)

    def close(self) -> None:
        self._listener.close()


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"text": text}).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (answer(b"busy", b"429 Too Many Requests"), "status 429"),
        (answer(event(tokens(0, 2))), "2 of 3 tokens"),
        (answer(event(tokens(0, 3)))[:-1], "2 of 3|0 of 3"),
        (answer(event(tokens(0, 3)) + b"event: error\ndata: {}\n\n"), "an event"),
        (answer(b'data: {"error": "no"}\n\n'), "an error: no"),
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP"),
        (answer(event(tokens(0, 3))).replace(b"Length: ", b"Length: 9"), "no end of the answer"),
        (b"", "0 of 3 tokens"),
    ],
)
def test_what_is_no_whole_answer_is_an_error_and_its_delays_do_not_count(
    sent: bytes, reason: str
) -> None:
    server = Server(sent)
    try:
        found = load.run(server.port, "/chat", streams=1, spread_s=0, tokens=3, limit_s=5)
    finally:
        server.close()
    assert (found.first_ms, found.token_ms, found.tokens) == ([], [], 0)
    (said,) = found.errors
    assert re.search(reason, said)
    assert found.errors[said] == 1


def test_a_port_where_nobody_listens_is_an_error_at_once() -> None:
    port = processes.free_port()
    found = load.run(port, "/chat", streams=2, spread_s=0, tokens=1, limit_s=600)
    assert found.errors == {"Connection refused": 2}


@pytest.fixture
def engine() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.proxy.engine", "--tokens-per-s", "200"],
        cwd=processes.CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    assert process.returncode == 0  # it ended because its standard input did


def test_the_engine_says_what_llama_server_says(engine: int) -> None:
    with socket.create_connection(("127.0.0.1", engine)) as sock:
        body = json.dumps({"messages": [{"role": "user", "content": script.prompt(7, 2)}]}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        sock.sendall(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        raw = b""
        while data := sock.recv(65536):
            raw += data
    chunks = [
        json.loads(line[6:])
        for line in raw.replace(b"\r\n", b"\n").split(b"\n")
        if line.startswith(b"data: {")
    ]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    texts = [one["choices"][0]["delta"].get("content") for one in chunks[1:-1]]
    assert re.fullmatch(r"<7\.0 \d+ \d+> the", texts[0])
    assert re.fullmatch(r"<7\.1 \d+ \d+> 边缘", texts[1])
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == 2
    assert chunks[-1]["timings"]["predicted_n"] == 2
    assert b"data: [DONE]\n\n" in raw


def test_times_of_tokens_are_those_of_one_clock(engine: int) -> None:
    found = load.run(engine, "/v1/chat/completions", streams=5, spread_s=0.05, tokens=4, limit_s=20)
    assert (found.errors, found.tokens) == ({}, 20)
    assert (len(found.first_ms), len(found.token_ms)) == (5, 15)
    assert min(found.token_ms) > 0  # read after it was sent


@pytest.mark.parametrize("name", SYSTEMS)
def test_each_system_serves_a_stream_exactly(name: str) -> None:
    if name == "haproxy" and shutil.which("haproxy") is None:
        pytest.skip("no haproxy here: scripts/haproxy installs it")
    if name == "litellm" and not (litellm_folder() / ".ready").exists():
        pytest.skip("no LiteLLM here: make bench-proxy installs it into the cache")
    found = measure(SYSTEMS[name], Case(3, 0.1), tokens=12, first_token_ms=0)
    assert (found.delays.errors, found.delays.tokens) == ({}, 36)
    if name != "direct":
        assert found.cpu_s > 0
        assert found.peak_rss_mib > 10


def test_a_system_that_does_not_start_is_told_with_its_own_words() -> None:
    broken = replace(
        SYSTEMS["edge"],
        command=lambda *_: [sys.executable, "-c", "raise SystemExit('no such thing')"],
        start_s=0.0,
    )
    found = measure(broken, Case(4, 0.0), tokens=3, first_token_ms=0)
    ((reason, count),) = found.delays.errors.items()
    assert count == 4
    assert "no stream within 0 s" in reason


def test_nothing_that_a_run_started_is_left(tmp_path: Path) -> None:
    script_text = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('up', flush=True); time.sleep(600)"
    )
    log = tmp_path / "log"
    cpus = processes.Placement.of_this_machine().system
    with processes.started([sys.executable, "-c", script_text], {}, cpus, tmp_path, log) as pid:
        while not log.read_text():
            threading.Event().wait(0.01)
        family = processes.tree(pid)
        assert len(family) == 2
        assert processes.cpu_s(family) > 0
    while any(map(runs, family)):
        threading.Event().wait(0.01)


def runs(pid: int) -> bool:
    """Whether a process is there; not one that only waits to be collected by its parent."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
