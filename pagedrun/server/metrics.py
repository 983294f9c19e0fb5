"""Figures for Prometheus. Times in seconds; no label has anything that a client chose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pagedrun.request import Finished

if TYPE_CHECKING:
    from prometheus_client import Metric

    from pagedrun.engine import EngineStats

_SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_LONG = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_TIERS = ("device", "host", "disk")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a model is doing now, and its engine's totals since the server began."""

    model: str
    loaded: bool
    running: int
    waiting: int
    stats: EngineStats


_NOW: tuple[tuple[str, str, Callable[[Reading], float]], ...] = (
    ("pagedrun_loaded", "Whether the model is.", lambda r: r.loaded),
    ("pagedrun_running", "Answers being computed.", lambda r: r.running),
    ("pagedrun_waiting", "Answers waiting for a slot.", lambda r: r.waiting),
)
_TOTALS: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("pagedrun_steps", "Steps of the engine.", lambda s: s.steps),
    ("pagedrun_step_seconds", "Time in steps.", lambda s: s.step_s),
    ("pagedrun_native_seconds", "Of it, in llama.cpp.", lambda s: s.native_s),
    ("pagedrun_computed_tokens", "Tokens computed in steps.", lambda s: s.tokens_computed),
)


class Metrics:
    """The counters of one server, in a registry of their own. read: what its models do, when it is asked for."""

    def __init__(self, read: Callable[[], Iterable[Reading]] = tuple) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = of = CollectorRegistry()
        self.requests = Counter(
            "pagedrun_http_requests",
            "Requests, by path and status (499: the client left).",
            ("path", "status"),
            registry=of,
        )
        one = ("model",)
        self.first_token = Histogram(
            "pagedrun_first_token_seconds", "From request to first text.", one, buckets=_SHORT, registry=of
        )
        self.queued = Histogram("pagedrun_queued_seconds", "Waiting for a slot.", one, buckets=_SHORT, registry=of)
        self.answers = Histogram(
            "pagedrun_answer_seconds",
            "From slot to end, by why it ended.",
            ("model", "reason"),
            buckets=_LONG,
            registry=of,
        )
        self.prompt = Counter("pagedrun_prompt_tokens", "Tokens of prompts.", one, registry=of)
        self.cached = Counter("pagedrun_cached_prompt_tokens", "Of these, found in the KV cache.", one, registry=of)
        self.chosen = Counter("pagedrun_generated_tokens", "Tokens of answers.", one, registry=of)
        self.loads = Histogram("pagedrun_load_seconds", "Loading a model.", one, buckets=_LONG, registry=of)
        self.unloads = Counter("pagedrun_unloads", "Models that gave their memory back, by why.", ("why",), registry=of)
        self.registry.register(_Engines(read))

    def of(self, model: str) -> ModelMetrics:
        """Those of one model, which are there from now on."""
        return ModelMetrics(self, model)

    def text(self) -> bytes:
        """In Prometheus' format."""
        return generate_latest(self.registry)


class ModelMetrics:
    """Counters of one model's answers."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self.first_token = metrics.first_token.labels(model)
        self._queued = metrics.queued.labels(model)
        self._prompt, self._cached = metrics.prompt.labels(model), metrics.cached.labels(model)
        self._chosen = metrics.chosen.labels(model)
        self._answers = metrics.answers
        self._model = model

    def ended(self, event: Finished) -> None:
        """An answer ended."""
        usage, timings = event.usage, event.timings
        self._prompt.inc(usage.prompt_tokens)
        self._cached.inc(usage.cached_tokens)
        self._chosen.inc(usage.completion_tokens)
        self._queued.observe(timings.queued_s)
        self._answers.labels(self._model, event.reason.value).observe(timings.prompt_s + timings.decode_s)


class _Engines(Collector):
    """What engines count themselves, read when it is asked for."""

    def __init__(self, read: Callable[[], Iterable[Reading]]) -> None:
        self._read = read

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        found = list(self._read())
        for name, text, of in _NOW:
            yield _family(GaugeMetricFamily(name, text, labels=("model",)), ((r.model, of(r)) for r in found))
        for name, text, total in _TOTALS:
            totals = ((r.model, total(r.stats)) for r in found)
            yield _family(CounterMetricFamily(name, text, labels=("model",)), totals)
        caches = [(r.model, kv) for r in found if (kv := r.stats.kv) is not None]
        if not caches:
            return
        for name, text, which in (
            ("pagedrun_kv_pages", "Pages, when an answer last ended.", "used"),
            ("pagedrun_kv_bytes", "What these take, with free frames.", "n_bytes"),
            ("pagedrun_kv_limit_bytes", "What pages may take.", "limit_bytes"),
        ):
            tiers = GaugeMetricFamily(name, text, labels=("model", "tier"))
            for model, kv in caches:
                for tier in _TIERS:
                    tiers.add_metric([model, tier], getattr(getattr(kv, tier), which))
            yield tiers
        cold = GaugeMetricFamily("pagedrun_kv_cold_pages", "Pages read from RAM at every step.", labels=("model",))
        yield _family(cold, ((model, kv.spill.cold) for model, kv in caches))
        left = CounterMetricFamily("pagedrun_kv_evictions", "Pages that left the device.", labels=("model",))
        yield _family(left, ((model, kv.evictions) for model, kv in caches))


def _family(family: GaugeMetricFamily | CounterMetricFamily, values: Iterable[tuple[str, float]]) -> Metric:
    for model, value in values:
        family.add_metric([model], value)
    return family
