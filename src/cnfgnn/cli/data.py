"""The commands that describe a data set, cut out a part of it, and write a synthetic one."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from cnfgnn.cli import progress
from cnfgnn.cli.settings import ChangesOption
from cnfgnn.config import toml
from cnfgnn.config.settings import Config, DataConfig
from cnfgnn.errors import ConfigError, DataError
from cnfgnn.files import making_folder

if TYPE_CHECKING:
    import numpy as np

    from cnfgnn.data.dataset import Dataset
    from cnfgnn.data.readings import Readings

TIME = re.compile(r"\d{4}(-\d\d){1,2}([ T]\d\d:\d\d(:\d\d)?)?", re.A)

data_app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Describe a data set, cut out a part of it, or write a synthetic one.",
)


@data_app.command()
def describe(
    path: Annotated[Path, typer.Argument(help="A file or folder of readings.")],
    changes: ChangesOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Describe a data set: sensors, time span, missing readings, edges, windows, and what looks wrong."""
    from cnfgnn.data.quality import findings
    from cnfgnn.data.source import open_data

    config = Config().with_changes(dict(toml.parse_change(text) for text in changes or []))
    data = open_data(config, path)
    facts = description_of(data, config.data)
    found = findings(data, config.data)
    if as_json:
        print(json.dumps(facts | {"findings": [asdict(finding) for finding in found]}))
        return
    table = Table(show_header=False)
    for name, value in facts.items():
        shown = f"{value:.2%}" if name.startswith("missing") and isinstance(value, float) else value
        if isinstance(shown, list) and name in ("variables", "covariates"):
            shown = "; ".join(shown)
        table.add_row(name.replace("_", " "), "-" if shown is None else str(shown))
    progress.out().print(table)
    for finding in found:
        print(f"note: {finding}")


def description_of(data: Dataset, settings: DataConfig) -> dict[str, Any]:
    """The facts of a data set as a run sees it, by name; a window counts if at least one sensor has it."""
    import numpy as np

    from cnfgnn.data.description import checksum
    from cnfgnn.data.quality import clean_dataset

    sha256 = checksum(data.readings)
    data = clean_dataset(data, settings)
    readings, graph = data.readings, data.graph
    known = readings.values[~readings.missing]
    share = readings.missing.mean(axis=0)
    minutes = readings.step / np.timedelta64(60, "s")
    return {
        "name": data.name,
        "sensors": len(readings.ids),
        "from": str(readings.times[0]),
        "to": str(readings.times[-1]),
        "times": "UTC" if readings.utc else "as in the file",
        "understood": "; ".join(readings.notes) or None,
        "rows": len(readings.times),
        "step_minutes": float(minutes),
        "missing": float(readings.missing.mean()),
        "missing_at_worst": float(share.max()),
        "worst_sensor": readings.ids[int(np.argmax(share))],
        "mean": round(float(known.mean()), 4) if len(known) else None,
        "edges_between_sensors": graph.edges - graph.loops,
        "edges_to_itself": graph.loops,
        "positions": "yes" if readings.positions is not None else "no",
        **_inputs(readings),
        **_extent(readings),
        **_windows(data, settings),
        "checksum": sha256,
    }


def _inputs(readings: Readings) -> dict[str, list[str]]:
    """Other variables and covariates, and for which sensors and times they are known."""
    import numpy as np

    found: dict[str, list[str]] = {}
    for one in readings.others:
        known = ~one.readings.missing
        sensors = (
            "all sensors" if one.for_all else f"{int(known.any(axis=0).sum())} of {len(readings.ids)} sensors"
        )
        rows = np.flatnonzero(known.any(axis=1))
        span = f", {one.readings.times[rows[0]]} to {one.readings.times[rows[-1]]}" if len(rows) else ""
        kind = "covariates" if one.known_ahead else "variables"
        found.setdefault(kind, []).append(f"{one.name} ({sensors}{span})")
    return found


def _extent(readings: Readings) -> dict[str, list[float]]:
    """The range of the sensors' positions, which shows a reader whether the two columns are swapped."""
    if readings.positions is None:
        return {}
    ends = zip(readings.positions.min(axis=0), readings.positions.max(axis=0), strict=True)
    latitude, longitude = ([round(float(low), 4), round(float(high), 4)] for low, high in ends)
    return {"latitude_from_to": latitude, "longitude_from_to": longitude}


def _windows(data: Dataset, settings: DataConfig) -> dict[str, int]:
    from cnfgnn.data.series import Series
    from cnfgnn.data.windows import SPLITS, Windows

    plan = (settings.history, settings.horizon, settings.shares, data.readings.source)
    try:
        windows = Windows.of(len(data.readings.times), *plan)
    except DataError:  # too few readings to train on may still be enough for a forecast
        return {f"{split}_windows": 0 for split in SPLITS}
    series = Series.of(data.readings)
    counts = {}
    for split in SPLITS:
        has = series.heard(windows.starts[split], windows, settings.missing)
        counts[f"{split}_windows"] = int(has.any(axis=0).sum())
    return counts


@data_app.command()
def synthesize(
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not exist yet, or be empty.")],
    sensors: Annotated[int, typer.Option(help="Number of sensors.")] = 24,
    days: Annotated[float, typer.Option(help="Number of days of readings.")] = 14.0,
    seed: Annotated[int, typer.Option(help="Random seed; another seed gives another city.")] = 0,
    inputs: Annotated[
        bool, typer.Option("--inputs", help="Let it rain at times, and add the flow and a rain forecast.")
    ] = False,
) -> None:
    """Write a synthetic city as a folder of readings, sensors and edges."""
    from cnfgnn.data.files.export import write_folder
    from cnfgnn.data.synthetic.city import city

    with making_folder(out) as folder:
        data = city(sensors, days, seed=seed, inputs=inputs)
        write_folder(data, folder)
    _print_written(out, data)


@data_app.command()
def cut(
    path: Annotated[Path, typer.Argument(help="A file or folder of readings.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not exist yet, or be empty.")],
    sensors: Annotated[
        Path | None, typer.Option(help="A file with one sensor id per line; # begins a comment.")
    ] = None,
    begin: Annotated[str, typer.Option("--from", help="The first time, like 2024-01-31 or later.")] = "",
    end: Annotated[str, typer.Option("--to", help="The time before which the readings end.")] = "",
    changes: ChangesOption = None,
) -> None:
    """Write some sensors of a data set, or a time span, with their part of the graph, into a new folder.

    A traffic file such as metr-la.h5 stays one, so that its zeros still mean missing readings. Variables and
    covariates are not cut in time.
    """
    from cnfgnn.data.files.export import write_folder, write_traffic
    from cnfgnn.data.files.folder import zeros_are_missing
    from cnfgnn.data.readings import rows_of
    from cnfgnn.data.source import open_data

    config = Config().with_changes(dict(toml.parse_change(text) for text in changes or []))
    with making_folder(out) as folder:
        data = open_data(config, path)
        if sensors is not None:
            data = data.select(_listed_sensors(sensors, data.readings.ids))
        times = data.readings.times
        kept = (times >= _time("--from", begin, times[0])) & (times < _time("--to", end, times[-1] + 1))
        if kept.sum() < 2:
            problem = f"has {kept.sum()} rows in that span, and at least two are needed"
            raise DataError(path, f"{problem}: it has {times[0]} to {times[-1]}")
        data = replace(data, name=out.absolute().name, readings=rows_of(data.readings, kept))
        if zeros_are_missing(path):
            write_traffic(data, folder)
        else:
            write_folder(data, folder, named=bool(config.data.target))
    _print_written(out, data)


def _listed_sensors(path: Path, known: tuple[str, ...]) -> list[str]:
    """The sensors that a file lists."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(path, f"cannot be read as a list of sensors ({error})") from None
    listed: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not (sensor := line.partition("#")[0].strip()):
            continue
        if sensor not in known or sensor in listed:
            problem = "is listed twice" if sensor in listed else "is not in the readings"
            raise DataError(path, f"sensor {sensor!r} {problem}", line=number)
        listed.append(sensor)
    if not listed:
        raise DataError(path, "lists no sensors: write one id per line")
    return listed


def _time(option: str, text: str, otherwise: np.datetime64) -> np.datetime64:
    import numpy as np

    try:
        if text and not TIME.fullmatch(text):  # such as an offset, which NumPy would follow
            raise ValueError
        return np.datetime64(text, "s") if text else otherwise
    except ValueError:
        raise ConfigError(option, f"needs a time like 2024-01-31 08:05, not {text!r}") from None


def _print_written(out: Path, data: Dataset) -> None:
    edges = data.graph.edges - data.graph.loops  # as `data describe` counts them
    print(f"{out}: {len(data.readings.ids)} sensors, {len(data.readings.times)} rows, {edges} edges")
