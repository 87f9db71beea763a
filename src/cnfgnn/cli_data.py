"""The command line's part that looks at data and makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from rich.table import Table

from cnfgnn import terminal
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.folder import load
from cnfgnn.data.synthetic import city
from cnfgnn.data.windows import SPLITS, Windows
from cnfgnn.errors import RunError
from cnfgnn.storage import make_folder, write_whole

data_app = typer.Typer(no_args_is_help=True, help="Look at data, or make them.")


@data_app.command()
def describe(
    path: Annotated[Path, typer.Argument(help="A file or folder of readings.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what is in a data set: sensors, span, step, what is missing, edges, windows."""
    facts = described(load(path))
    if as_json:
        print(json.dumps(facts))
        return
    table = Table(show_header=False)
    for name, value in facts.items():
        table.add_row(name, f"{value:.2%}" if isinstance(value, float) else str(value))
    terminal.out().print(table)


def described(data: Dataset) -> dict[str, str | int | float]:
    """The facts of a data set, by name."""
    readings, graph = data.readings, data.graph
    windows = Windows.of(len(readings.times), source=readings.source)
    worst = int(np.argmax(readings.missing.mean(axis=0)))
    return {
        "name": data.name,
        "sensors": len(readings.ids),
        "from": str(readings.times[0]),
        "to": str(readings.times[-1]),
        "rows": len(readings.times),
        "step": str(pd.Timedelta(readings.step)),
        "missing": float(readings.missing.mean()),
        f"missing at {readings.ids[worst]}, the worst": float(readings.missing[:, worst].mean()),
        "mean": f"{float(readings.values[~readings.missing].mean()):.2f}"
        if not readings.missing.all()
        else "-",
        "edges between sensors": graph.edges - graph.loops,
        "edges to itself": graph.loops,
        "positions": "yes" if readings.positions is not None else "no",
        **{f"{split} windows": windows.count(split) for split in SPLITS},
    }


@data_app.command()
def synthesize(
    out: Annotated[Path, typer.Argument(help="The new folder.")],
    sensors: Annotated[int, typer.Option(help="How many.")] = 24,
    days: Annotated[float, typer.Option(help="How long.")] = 14.0,
    seed: Annotated[int, typer.Option(help="Another seed, another city.")] = 0,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="readings.parquet instead of readings.csv.")
    ] = False,
) -> None:
    """Write a synthetic city as a folder of readings, sensors and edges."""
    data = city(sensors, days, seed=seed)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(out, "is there already, and is left as it is")
    make_folder(out)
    write_folder(data, out, parquet)
    print(
        f"{out}: {len(data.readings.ids)} sensors, {len(data.readings.times)} rows, {data.graph.edges} edges"
    )


def write_folder(data: Dataset, out: Path, parquet: bool = False) -> None:
    """A data set as the files that `load` reads."""
    readings, graph = data.readings, data.graph
    frame = pd.DataFrame(
        readings.values, index=pd.DatetimeIndex(readings.times, name="time"), columns=readings.ids
    )
    if readings.positions is not None:
        located = pd.DataFrame(readings.positions, columns=["latitude", "longitude"], index=readings.ids)
        write_whole(out / "sensors.csv", located.to_csv(index_label="id").encode())
    names = np.array(readings.ids)
    edges = {"from": names[graph.senders], "to": names[graph.receivers], "weight": graph.weights}
    write_whole(out / "edges.csv", pd.DataFrame(edges).to_csv(index=False).encode())
    if parquet:
        write_whole(out / "readings.parquet", frame.to_parquet())
    else:
        write_whole(out / "readings.csv", frame.to_csv().encode())
