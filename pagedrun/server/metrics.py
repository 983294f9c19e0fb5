"""Figures for Prometheus. Times in seconds; no label has anything that a client chose."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pagedrun.request import Finished

if TYPE_CHECKING:
    from prometheus_client import Metric

    from pagedrun.server.serving import Serving

_SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_LONG = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


class Metrics:
    """The counters of one server, in a registry of their own."""

    def __init__(self, serving: Serving) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        of = self.registry
        self.requests = Counter(
            "pagedrun_http_requests",
            "Requests, by path and status (499: the client left).",
            ("path", "status"),
            registry=of,
        )
        self.first_token = Histogram(
            "pagedrun_first_token_seconds", "From request to first text.", buckets=_SHORT, registry=of
        )
        self.queued = Histogram("pagedrun_queued_seconds", "Waiting for a slot.", buckets=_SHORT, registry=of)
        self.answers = Histogram(
            "pagedrun_answer_seconds", "From slot to end, by why it ended.", ("reason",), buckets=_LONG, registry=of
        )
        self._prompt = Counter("pagedrun_prompt_tokens", "Tokens of prompts.", registry=of)
        self._cached = Counter("pagedrun_cached_prompt_tokens", "Of these, found in the KV cache.", registry=of)
        self._chosen = Counter("pagedrun_generated_tokens", "Tokens of answers.", registry=of)
        self.registry.register(_Engine(serving))

    def ended(self, event: Finished) -> None:
        """An answer ended."""
        usage, timings = event.usage, event.timings
        self._prompt.inc(usage.prompt_tokens)
        self._cached.inc(usage.cached_tokens)
        self._chosen.inc(usage.completion_tokens)
        self.queued.observe(timings.queued_s)
        self.answers.labels(event.reason.value).observe(timings.prompt_s + timings.decode_s)

    def text(self) -> bytes:
        """In Prometheus' format."""
        return generate_latest(self.registry)


class _Engine(Collector):
    """What the engine counts itself, read when it is asked for."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        gate, stats = self._serving.gate, self._serving.service.stats
        yield GaugeMetricFamily("pagedrun_running", "Answers being computed.", gate.running)
        yield GaugeMetricFamily("pagedrun_waiting", "Answers waiting for a slot.", gate.waiting)
        yield CounterMetricFamily("pagedrun_steps", "Steps of the engine.", stats.steps)
        yield CounterMetricFamily("pagedrun_step_seconds", "Time in steps.", stats.step_s)
        yield CounterMetricFamily("pagedrun_native_seconds", "Of it, in llama.cpp.", stats.native_s)
        yield CounterMetricFamily("pagedrun_computed_tokens", "Tokens computed in steps.", stats.tokens_computed)
        if (kv := stats.kv) is None:
            return
        pages = GaugeMetricFamily("pagedrun_kv_pages", "Pages, when an answer last ended.", labels=("tier",))
        taken = GaugeMetricFamily("pagedrun_kv_bytes", "What these take, with free frames.", labels=("tier",))
        limit = GaugeMetricFamily("pagedrun_kv_limit_bytes", "What pages may take.", labels=("tier",))
        for tier, found in (("device", kv.device), ("host", kv.host), ("disk", kv.disk)):
            pages.add_metric([tier], found.used)
            taken.add_metric([tier], found.n_bytes)
            limit.add_metric([tier], found.limit_bytes)
        yield from (pages, taken, limit)
        yield GaugeMetricFamily("pagedrun_kv_cold_pages", "Pages read from RAM at every step.", kv.spill.cold)
        yield CounterMetricFamily("pagedrun_kv_evictions", "Pages that left the device.", kv.evictions)
