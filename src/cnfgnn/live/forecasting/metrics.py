"""What a service tells Prometheus about its forecasts, besides the readings that arrive."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from prometheus_client import Histogram

from cnfgnn.live.forecasting.forecasts import Forecast
from cnfgnn.live.forecasting.watch import KINDS, LEVELS, OVERALL, Report
from cnfgnn.live.intake.intake import PREFIX, IntakeMetrics

MOST_ALARMS = 100  # that are named, so that a broken network does not flood Prometheus with series
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics(IntakeMetrics):
    """Counters and gauges; `clock` returns the service's time, `stale` whether its forecast is too old."""

    def __init__(self, clock: Callable[[], float], stale: Callable[[], bool]) -> None:
        super().__init__()
        counter, gauge = self._counter, self._gauge
        self.forecasts = counter("forecasts", "Forecasts of all sensors that were made.")
        self.skipped = counter("skipped_steps", "Steps that passed without a forecast.")
        self.requests = counter("http_requests", "HTTP requests, by path and status.", "path", "status")
        text = "Seconds from the last reading of a step, or from its deadline, to its forecast."
        self.latency = Histogram(f"{PREFIX}_forecast_seconds", text, buckets=SECONDS, registry=self.registry)
        self.made = gauge("forecast_timestamp_seconds", "When the last forecast was made.")
        self.last_reading = gauge("last_reading_timestamp_seconds", "Time of the newest reading.")
        self.quality = gauge("sensors", "Sensors by the quality of their forecast.", "quality")
        self.streams = gauge("streams", "Open streams of events.")
        self.broker = gauge("broker_connected", "Whether the MQTT broker is connected.")
        self.switches = counter("model_switches", "How often another model went live.")
        self.trainers = counter("trainers", "Trainers beside the service that ended, by how.", "end")
        self.model_trained = gauge("model_trained_timestamp_seconds", "When the live model was trained.")
        gauge("time_seconds", "The service's clock.").set_function(clock)
        text = "Whether the last forecast is too old to be used."
        gauge("stale", text).set_function(lambda: float(stale()))
        self._add_watch()

    def _add_watch(self) -> None:
        text = "Error of the forecasts of the last day, all sensors and steps ahead."
        self.rmse = self._gauge("rmse", text)
        text = "By which share that error is smaller than the error of the last value."
        self.skill = self._gauge("skill", text)
        text = "Share of the readings of the last day within their ranges."
        self.coverage = self._gauge("coverage", text, "level")
        self.alarms = self._gauge("alarms", "Sensors with an alarm, by its kind.", "kind")
        text = f"1 for each alarm, of at most {MOST_ALARMS} of them; without a sensor if it is about all."
        self.alarm = self._gauge("alarm", text, "sensor", "kind")
        for gauge in (self.rmse, self.skill, *(self.coverage.labels(str(level)) for level in LEVELS)):
            gauge.set(math.nan)  # unknown
        for kind in {*KINDS, *OVERALL}:
            self.alarms.labels(kind)

    def forecast_made(self, forecast: Forecast, seconds: float) -> None:
        self.forecasts.inc()
        self.latency.observe(seconds)
        self.made.set(forecast.made)
        if forecast.newest_reading is not None:
            self.last_reading.set(forecast.newest_reading)
        for quality, count in forecast.counts().items():
            self.quality.labels(quality).set(count)

    def watched(self, report: Report) -> None:
        """Show what the watch has seen."""
        overall = report.overall
        shares = {self.coverage.labels(str(level)): share for level, share in overall.coverage.items()}
        for gauge, value in {self.rmse: overall.rmse, self.skill: overall.skill, **shares}.items():
            gauge.set(math.nan if value is None else value)
        counts = Counter(alarm.kind for alarm in report.alarms)
        for kind in {*KINDS, *OVERALL}:
            self.alarms.labels(kind).set(counts[kind])
        self.alarm.clear()
        for alarm in report.alarms[:MOST_ALARMS]:
            self.alarm.labels(alarm.sensor or "", alarm.kind).set(1)
