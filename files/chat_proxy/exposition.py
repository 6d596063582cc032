"""GET /metrics: the numbers in Prometheus' text format."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from .metrics import Histogram

if TYPE_CHECKING:
    from prometheus_client import Metric

    from .service import Service


def exposition(service: "Service", engine_trouble: str | None) -> tuple[bytes, str]:
    """The text and its content type; `engine_trouble` is None when the engine can generate."""
    # Only where somebody asks: a proxy that nobody watches does without the library.
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.registry import Collector

    class Numbers(Collector):
        def collect(self) -> "Iterable[Metric]":
            return _families(service, engine_trouble)

    registry = CollectorRegistry()
    registry.register(Numbers())
    ProcessCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _families(service: "Service", engine_trouble: str | None) -> "Iterator[Metric]":
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    metrics, admission = service.metrics, service.admission

    def gauge(name: str, what: str, value: float) -> "Metric":
        return GaugeMetricFamily(f"edge_proxy_{name}", what, value=value)

    def counter(
        name: str, what: str, labels: list[str], rows: "Iterable[tuple[list[str], int]]"
    ) -> "Metric":
        family = CounterMetricFamily(f"edge_proxy_{name}", what, labels=labels)
        for values, count in rows:
            family.add_metric(values, count)
        return family

    def histogram(name: str, what: str, found: Histogram) -> "Metric":
        return HistogramMetricFamily(
            f"edge_proxy_{name}", what, buckets=found.buckets(), sum_value=found.total
        )

    yield counter(
        "requests",
        "Requests that have ended; 499: the client left.",
        ["path", "status"],
        (([path, str(status)], n) for (path, status), n in metrics.requests.items()),
    )
    yield counter(
        "rejections",
        "Requests that ended with an error, by what the client was told.",
        ["reason"],
        (([reason], n) for reason, n in metrics.rejected.items()),
    )
    yield counter(
        "cancellations",
        "Requests whose client left, by what it waited for.",
        ["phase"],
        (([phase], n) for phase, n in metrics.cancelled.items()),
    )
    yield counter(
        "tokens",
        "Tokens of prompts and of answers, as the engine counts them.",
        ["kind"],
        (([kind], n) for kind, n in metrics.tokens.items()),
    )
    yield histogram("queue_seconds", "From a request's arrival to its slot.", metrics.queue)
    yield histogram(
        "first_token_seconds",
        "From a request's arrival to the first token of its stream.",
        metrics.first_token,
    )
    yield histogram(
        "between_tokens_seconds", "From one piece of a stream to the next.", metrics.between_tokens
    )
    yield gauge("slots", "Generations that may run at once.", service.settings.slots)
    yield gauge("active", "Slots that are taken.", admission.active)
    yield gauge("streams", "Answers that are being streamed.", service.streams())
    yield gauge("queue", "Requests that wait for a slot.", admission.waiting)
    yield gauge("queue_limit", "Requests that may wait.", service.settings.queue_limit)
    yield gauge("engine_ready", "1: the engine can generate.", float(engine_trouble is None))
