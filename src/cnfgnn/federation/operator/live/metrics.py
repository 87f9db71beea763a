"""What the server of a live federation counts, for Prometheus: who is there, how fast, how complete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cnfgnn.federation.coverage_sums import COUNT, COVERAGE
from cnfgnn.federation.operator.live.state import live_state

OF_FEDERATION = {
    "running": ("running", "Whether the task runs."),
    "steps": ("steps", "Steps since the task began."),
    "exchange_seconds": ("seconds", "Seconds that the server took for the last step, with its exchanges."),
    "exchange_median_seconds": ("median_seconds", "The median of these seconds."),
    "exchange_most_seconds": ("most_seconds", "The most of these seconds."),
    "step_timestamp_seconds": ("made", "When the last step was made."),
    "step_period_seconds": ("every", "Seconds between two steps; of a recording, as fast as it is played."),
    "model_trained_timestamp_seconds": ("trained", "When the model in use was trained."),
    "model_switches": ("switch_count", "Switches of the model that the server remembers."),
    "model_switch_timestamp_seconds": ("switched", "When the model was last switched."),
    "training": ("training", "Whether a training beside the task is under way."),
    "training_failed": ("failed", "Whether the last training beside the task failed."),
}
OF_SITE = {
    "site_reachable": ("reachable", "Whether the site answers."),
    "site_latency_seconds": ("latency", "The round trip to the site."),
    "site_sensors": ("sensors", "Sensors of the site."),
    "site_sensors_present": ("present", "Sensors of the site that sent a reading for its last step."),
    "site_seen_timestamp_seconds": ("last_seen", "When the site last answered."),
    "site_refused_answers": ("refused", "Answers of the site that were refused since the task began."),
}


class FederationMetrics(Collector):
    """Reads the state in the server's kit whenever somebody asks."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit

    def collect(self) -> Iterator[GaugeMetricFamily]:
        state = live_state(self.kit)
        known = {key: state[key] for key, _ in OF_FEDERATION.values() if key in state} | {
            "running": state["state"] == "running",
            "switched": state["switches"][-1]["time"] if state["switches"] else None,
            "training": bool(state["training"]),
            "failed": bool(state["training_problem"]),
        }
        for name, (key, text) in OF_FEDERATION.items():
            if known[key] is not None:
                yield _gauge(name, text, value=float(known[key]))
        for name, (key, text) in OF_SITE.items():
            of_sites = _gauge(name, text, labels=["site"])
            for site, told in state["sites"].items():
                if told.get(key) is not None:
                    of_sites.add_metric([site], float(told[key]))
            yield of_sites
        told = {site: told[COVERAGE] for site, told in state["sites"].items() if told.get(COVERAGE)}
        yield from _coverage(told)


def _coverage(told: dict[str, dict[str, int]]) -> Iterator[GaugeMetricFamily]:
    """The sums of sites whose owners tell them."""
    text = "Comparisons of a reading with the range of a forecast in a day, at sites that tell it."
    counted = _gauge("site_compared", text, labels=["site"])
    text = "How many of these readings lay within the range, by its level in per cent."
    covered = _gauge("site_covered", text, labels=["site", "level"])
    for site, sums in told.items():
        counted.add_metric([site], sums[COUNT])
        for level in sums.keys() - {COUNT}:
            covered.add_metric([site, level], sums[level])
    yield counted
    yield covered


def _gauge(name: str, text: str, **about: Any) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"cnfgnn_federation_{name}", text, **about)
