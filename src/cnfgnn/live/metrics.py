"""What the service counts, for Prometheus; each service has a registry of its own."""

from __future__ import annotations

import math
from collections import Counter as Counted
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from cnfgnn.live.forecasts import Forecast
from cnfgnn.live.recent import Verdict
from cnfgnn.live.watch import KINDS, LEVELS, OVERALL, Report

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_ALARMS = 100  # that are named, so that a broken network does not flood Prometheus with series
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counters and gauges; `clock` returns the service's time, `stale` whether its forecast is too old."""

    def __init__(self, clock: Callable[[], float], stale: Callable[[], bool]) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.readings = Counter(
            "cnfgnn_live_readings",
            "Readings that arrived, by source and by what became of them.",
            ["source", "verdict"],
            registry=registry,
        )
        self.forecasts = Counter(
            "cnfgnn_live_forecasts", "Forecasts of all sensors that were made.", registry=registry
        )
        self.skipped = Counter(
            "cnfgnn_live_skipped_steps", "Steps that passed without a forecast.", registry=registry
        )
        self.failures = Counter(
            "cnfgnn_live_failures",
            "Failures that the service survived, by part.",
            ["part"],
            registry=registry,
        )
        self.requests = Counter(
            "cnfgnn_live_http_requests",
            "HTTP requests, by path and status.",
            ["path", "status"],
            registry=registry,
        )
        self.latency = Histogram(
            "cnfgnn_live_forecast_seconds",
            "Seconds from the last reading of a step, or from its deadline, to its forecast.",
            buckets=SECONDS,
            registry=registry,
        )
        self.made = Gauge(
            "cnfgnn_live_forecast_timestamp_seconds", "When the last forecast was made.", registry=registry
        )
        self.last_reading = Gauge(
            "cnfgnn_live_last_reading_timestamp_seconds", "Time of the newest reading.", registry=registry
        )
        self.quality = Gauge(
            "cnfgnn_live_sensors", "Sensors by the quality of their forecast.", ["quality"], registry=registry
        )
        self.streams = Gauge("cnfgnn_live_streams", "Open streams of events.", registry=registry)
        self.broker = Gauge(
            "cnfgnn_live_broker_connected", "Whether the MQTT broker is connected.", registry=registry
        )
        self._add_model(registry)
        Gauge("cnfgnn_live_time_seconds", "The service's clock.", registry=registry).set_function(clock)
        Gauge(
            "cnfgnn_live_stale", "Whether the last forecast is too old to be used.", registry=registry
        ).set_function(lambda: float(stale()))
        self._add_watch(registry)
        for verdict in Verdict:
            self.readings.labels("http", verdict.value)

    def _add_model(self, registry: CollectorRegistry) -> None:
        """What is counted about the model and its successors."""
        self.switches = Counter(
            "cnfgnn_live_model_switches", "How often another model went live.", registry=registry
        )
        self.trainers = Counter(
            "cnfgnn_live_trainers",
            "Trainers beside the service that ended, by how.",
            ["end"],
            registry=registry,
        )
        self.model_trained = Gauge(
            "cnfgnn_live_model_trained_timestamp_seconds",
            "When the live model was trained.",
            registry=registry,
        )

    def forecast_made(self, forecast: Forecast, seconds: float) -> None:
        self.forecasts.inc()
        self.latency.observe(seconds)
        self.made.set(forecast.made)
        if forecast.newest_reading is not None:
            self.last_reading.set(forecast.newest_reading)
        for quality, count in forecast.counts().items():
            self.quality.labels(quality).set(count)

    def _add_watch(self, registry: CollectorRegistry) -> None:
        self.rmse = Gauge(
            "cnfgnn_live_rmse",
            "Error of the forecasts of the last day, all sensors and steps ahead.",
            registry=registry,
        )
        self.skill = Gauge(
            "cnfgnn_live_skill",
            "By which share that error is smaller than the error of the last value.",
            registry=registry,
        )
        self.coverage = Gauge(
            "cnfgnn_live_coverage",
            "Share of the readings of the last day within their ranges.",
            ["level"],
            registry=registry,
        )
        self.alarms = Gauge(
            "cnfgnn_live_alarms", "Sensors with an alarm, by its kind.", ["kind"], registry=registry
        )
        self.alarm = Gauge(
            "cnfgnn_live_alarm",
            f"1 for each alarm, of at most {MOST_ALARMS} of them; without a sensor if it is about all.",
            ["sensor", "kind"],
            registry=registry,
        )
        for gauge in (self.rmse, self.skill, *(self.coverage.labels(str(level)) for level in LEVELS)):
            gauge.set(math.nan)  # unknown
        for kind in dict.fromkeys((*KINDS, *OVERALL)):
            self.alarms.labels(kind)

    def watched(self, report: Report) -> None:
        """Show what the watch has seen."""
        overall = report.overall
        self.rmse.set(_number(overall.rmse))
        self.skill.set(_number(overall.skill))
        for level, share in overall.coverage.items():
            self.coverage.labels(str(level)).set(_number(share))
        counts = Counted(alarm.kind for alarm in report.alarms)
        for kind in dict.fromkeys((*KINDS, *OVERALL)):
            self.alarms.labels(kind).set(counts[kind])
        self.alarm.clear()
        for alarm in report.alarms[:MOST_ALARMS]:
            self.alarm.labels(alarm.sensor or "", alarm.kind).set(1)

    def text(self) -> bytes:
        return generate_latest(self.registry)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
