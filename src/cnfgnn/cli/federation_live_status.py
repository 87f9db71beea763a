"""A live federation in words: for the operator of its server, and for the owner of a site."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text


def live_lines(status: Mapping[str, Any]) -> list[str]:
    """The model of a live task, its last switch, and the training beside it; none for other tasks."""
    if not (told := status.get("federation")) or told["model"] is None:
        return []
    trained = "" if told["trained"] is None else f", trained {_ago(told['trained'])}"
    lines = [f"  model: {told['model']}, round {told['round']}{trained}"]
    if told["switches"]:
        switch = told["switches"][-1]
        replaced = f"{switch['after']} instead of {switch['before']}"
        lines.append(f"  last switch: {_ago(switch['time'])}, {replaced}: {switch['why']}")
    if training := told["training"]:
        rounds = f"round {training['round']}/{training['rounds']}" if training["rounds"] else "getting ready"
        rounds = "waiting for sites" if training["waiting"] else rounds
        lines.append(f"  training beside it: {rounds}, began {_ago(training['began'])}")
    if problem := told["training_problem"]:
        lines.append(f"  the last training failed: {problem}")
    if told["trainings"]:
        ended = told["trainings"][-1]
        lines.append(f"  last training: {ended['outcome']}, {ended['text']}")
    joined = told["new_sensors"] or {}
    return lines + [f"  new sensors of {site}: {', '.join(sensors)}" for site, sensors in joined.items()]


def service_lines(live: Mapping[str, Any]) -> list[str]:
    """How the live service of a site is, for its owner."""
    lines = []
    if (health := live["health"]) is None:
        lines.append("it does not answer")
    elif "step" not in health:
        status = health.get("status")
        lines.append(f"{status}: no forecast yet" if status == "starting" else str(status))
    else:
        qualities = ", ".join(f"{count} {name}" for name, count in health["quality"].items() if count)
        alarms = f"{health['alarms']} alarm{'s' if health['alarms'] != 1 else ''}"
        lines.append(f"{health['status']}: newest forecast after {health['step']} ({qualities}), {alarms}")
        if health.get("server") == "unreachable":
            lines.append("the server cannot be reached: the site goes on by itself")
    if refused := (health or {}).get("refused"):
        lines.append(f"lines of files that are refused: {refused['lines']}, the last: {refused['last'][-1]}")
    for part, problem in ((health or {}).get("problems") or {}).items():
        lines.append(f"{part}: {problem}")
    if live["model"]:
        lines.append(f"model: {live['model']}")
    if switch := live["switch"]:
        lines.append(f"last switch: {switch['time']}, from {switch['from']}: {switch['why']}")
    return lines


def live_sites_table(told: Mapping[str, Any]) -> Table:
    """A row for each site of a live task: whether it is there, how complete and how fast it is."""
    headings = ["site", "here", "readings", "of step", "took part", "latency", "last seen"]
    tells = any(site.get("coverage") for site in told["sites"].values())
    table = Table(*headings, *(["in its ranges"] if tells else []), "last problem", box=SIMPLE_HEAD)
    for name, site in told["sites"].items():
        latency = site["latency"]
        row = [
            name,
            "yes" if site["reachable"] else "no",
            f"{site['present'] or 0} of {site['sensors']}",
            str(site.get("step") or ""),
            str(site.get("quality") or ""),
            "" if latency is None else f"{latency * 1000:.0f} ms",
            "never" if site["last_seen"] is None else _ago(site["last_seen"]),
        ]
        if tells:
            row.append(_coverage(site.get("coverage")))
        table.add_row(*map(Text, [*row, str(site["problem"] or "")]))
    return table


def _coverage(sums: Mapping[str, int] | None) -> str:
    """The shares of readings within their ranges, of a site whose owner tells them."""
    if not sums:
        return "not told"
    levels = sorted((level for level in sums if level != "count"), key=int)
    return ", ".join(f"{level} %: {100 * sums[level] / sums['count']:.1f} %" for level in levels)


def _ago(then: float) -> str:
    passed = max(0.0, time.time() - then)
    for unit, seconds in (("days", 86_400), ("h", 3600), ("min", 60)):
        if passed >= 2 * seconds:
            return f"{passed // seconds:.0f} {unit} ago"
    return f"{passed:.0f} s ago"
