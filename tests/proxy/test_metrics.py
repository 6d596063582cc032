"""/metrics, read as Prometheus reads it, after requests whose numbers are known."""

from collections.abc import Callable

from chat_proxy.metrics import Histogram
from prometheus_client.parser import text_string_to_metric_families

from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, last_events, text_event
from tests.proxy.test_crowd import forever, hold_slot

Samples = dict[tuple[str, ...], float]


def scrape(proxy: Proxy) -> Samples:
    """Each sample by its name (without edge_proxy_) and its labels' values."""
    answer = proxy.get("/metrics")
    assert answer.status == 200
    assert (answer.header("content-type") or "").startswith("text/plain; version=")
    found: Samples = {}
    for family in text_string_to_metric_families(answer.read().decode()):
        assert family.documentation
        for one in family.samples:
            found[one.name.removeprefix("edge_proxy_"), *one.labels.values()] = one.value
    return found


def test_requests_tokens_and_times(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(slots=2, queue_limit=5)
    first = scrape(proxy)
    assert first["slots",] == 2
    assert first["queue_limit",] == 5
    assert first["process_resident_memory_bytes",] > 1e7
    engine.script = lambda turn: turn.say("a", "b", "c")
    for _ in range(2):
        last = proxy.chat().events()[-1]
    usage = last["usage"]
    proxy.post("/chat", b"{").read()
    proxy.post("/v1/chat/completions", {"messages": [], "stream": True}).read()
    proxy.line(3)
    seen = scrape(proxy)
    assert seen["requests_total", "/chat", "200"] == 2
    assert seen["requests_total", "/chat", "400"] == 1
    assert seen["requests_total", "/v1/chat/completions", "200"] == 1
    assert seen["rejections_total", "invalid_request_error"] == 1
    assert seen["tokens_total", "completion"] == 3 * usage["completion_tokens"]
    assert seen["tokens_total", "prompt"] == 3 * usage["prompt_tokens"]
    assert seen["first_token_seconds_count",] == seen["queue_seconds_count",] == 3
    assert seen["between_tokens_seconds_count",] >= 4  # two answers of three, at least
    assert seen["first_token_seconds_bucket", "+Inf"] == 3
    assert 0 < seen["first_token_seconds_sum",] < 30


def test_what_runs_and_what_waits_is_seen(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy(slots=1, queue_limit=1, heartbeat_s=0.05)
    running = hold_slot(proxy, engine)
    waiting = proxy.chat()
    assert waiting.block() == ": queue 1\n"
    assert proxy.chat().status == 429
    seen = scrape(proxy)
    assert [seen[name,] for name in ("active", "streams", "queue")] == [1, 1, 1]
    assert seen["rejections_total", "busy"] == 1
    waiting.leave()
    proxy.line(1)
    running.leave()
    proxy.line(2)
    seen = scrape(proxy)
    assert [seen[name,] for name in ("active", "streams", "queue")] == [0, 0, 0]
    assert seen["cancellations_total", "queue"] == 1
    assert seen["cancellations_total", "answer"] == 1
    assert seen["requests_total", "/chat", "499"] == 2


def test_the_engine_s_state(engine: ScriptedEngine, start_proxy: Callable[..., Proxy]) -> None:
    proxy = start_proxy()
    assert scrape(proxy)["engine_ready",] == 1
    engine.loading = True
    assert scrape(proxy)["engine_ready",] == 0
    engine.loading = False
    engine.stop()
    assert scrape(proxy)["engine_ready",] == 0


def test_the_scrape_does_not_wait_for_a_slot(engine: ScriptedEngine, proxy: Proxy) -> None:
    first = hold_slot(proxy, engine)
    assert scrape(proxy)["active",] == 1
    first.leave()


def test_a_token_is_counted_where_it_falls() -> None:
    histogram = Histogram((0.1, 1))
    for value in (0.05, 0.1, 0.5, 1, 7):
        histogram.observe(value)
    assert histogram.buckets() == [("0.1", 2), ("1", 4), ("+Inf", 5)]
    assert histogram.total == 8.65


def test_gaps_are_those_of_the_engine(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    proxy = start_proxy()

    def script(turn: Turn) -> None:
        turn.begin()
        for text in "abcd":
            turn.part(text_event(text))
            turn.wait_read()
        turn.part(last_events())
        turn.end()

    engine.script = script
    proxy.chat().events()
    seen = scrape(proxy)
    assert seen["between_tokens_seconds_count",] == 3
    engine.script = forever
