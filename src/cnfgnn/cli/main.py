"""The command line: train, evaluate, forecast, and look at runs; more commands are in the modules cli_*.

Commands import what they need when they run: --help has to wait neither for PyTorch nor for pandas.
"""

from __future__ import annotations

import errno
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

import cnfgnn
from cnfgnn.algorithm.methods import ALIASES, METHODS, method_of, preset
from cnfgnn.cli import progress
from cnfgnn.cli.data import data_app
from cnfgnn.cli.federation import federation_app
from cnfgnn.cli.report import report
from cnfgnn.cli.settings import (
    ChangesOption,
    ConfigOption,
    LikeOption,
    MethodOption,
    ReadingOption,
    SeedOption,
    SizeOption,
    like_of,
    reading_changes,
    resolve,
)
from cnfgnn.cli.studies import compare, reproduce
from cnfgnn.config import toml
from cnfgnn.config.settings import Config
from cnfgnn.errors import CnfgnnError, ConfigError, StorageError, printable
from cnfgnn.files import write_whole
from cnfgnn.process_setup import end_with_parent, keep_freed_memory

if TYPE_CHECKING:
    from cnfgnn.data.dataset import Dataset
    from cnfgnn.data.quality import Finding
    from cnfgnn.runs.folder import Run

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=cnfgnn.__doc__
)
app.add_typer(data_app, name="data")
app.add_typer(federation_app, name="federation")
app.command()(compare)
app.command()(reproduce)
app.command()(report)

DataArgument = Annotated[
    Path | None, typer.Argument(help="A file or folder of readings; else the synthetic city.")
]
OwnDataArgument = Annotated[Path | None, typer.Argument(help="Other readings than the run was trained on.")]
RunArgument = Annotated[Path, typer.Argument(help="A run folder.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    if version:
        print(f"cnfgnn {cnfgnn.__version__}")
        raise typer.Exit


@app.command()
def train(
    data: DataArgument = None,
    method: MethodOption = None,
    node_size: SizeOption = None,
    like: LikeOption = None,
    config: ConfigOption = None,
    changes: ChangesOption = None,
    seed: SeedOption = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = None,
    out: Annotated[Path | None, typer.Option(help="The new run's folder.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run.")] = None,
) -> None:
    """Train a method, or go on with an interrupted run as if it had never stopped.

    DATA is a METR-LA or PEMS-BAY .h5 file, or a folder with readings.csv (a column of times like 2024-01-31
    08:05, then one per sensor, empty where missing) and sensors.csv (id, latitude, longitude) or edges.csv
    (from, to, weight or distance). `cnfgnn settings` lists what --set and --config can change.
    """
    from cnfgnn.data.quality import findings
    from cnfgnn.data.source import open_data
    from cnfgnn.runs.folder import Run
    from cnfgnn.runs.scores import scores_as_dict
    from cnfgnn.runs.train import train_run

    if resume is not None:
        given = {"--method": method, "--like": like, "--config": config, "--set": changes, "--seed": seed}
        given |= {"--out": out, "--device": device, "--size": node_size}
        for name, value in given.items():
            if value is not None:
                raise ConfigError(name, "a resumed run keeps the settings it began with")
        run = Run.open(resume)
        readings = _data_of(run, data, None)
    else:
        settings = resolve(data, method, node_size, like, config, changes or [], seed, device)
        readings = open_data(settings, data)
        run = Run.create(out or _new_folder(settings, readings), settings, readings)
        _say(findings(readings, settings.data))
    if run.finished:
        print(f"{run.folder} is finished: cnfgnn evaluate {run.folder}", file=sys.stderr)
        return
    _tell_understood(readings)
    print(f"run {run.folder}", file=sys.stderr, flush=True)
    try:
        result = train_run(run, readings, progress.watcher())
    except KeyboardInterrupt:
        rounds = len(Run.open(run.folder).progress.history)
        kept = f"{rounds} round{'s are' if rounds != 1 else ' is'} kept"
        print(f"\nstopped; {kept}: cnfgnn train --resume {run.folder}", file=sys.stderr)
        raise typer.Exit(130) from None
    best = result.progress.best
    title = f"{run.config.method}, best round {best.r_g} of {len(result.progress.history)}, test"
    progress.out().print(
        progress.errors_table(scores_as_dict(result.test, readings.readings.ids), title, _step_minutes(run))
    )
    moved = best.training_bytes
    per_node, per_site = progress.size(moved.per_node), progress.size(moved.per_site)
    print(f"training moved {per_node} until then, counted per node; {per_site} per site")
    print(f"next: cnfgnn forecast {run.folder} --out forecasts.csv")


@app.command()
def evaluate(
    run: RunArgument,
    data: OwnDataArgument = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    per_step: Annotated[bool, typer.Option("--per-step", help="Also a row for every step ahead.")] = False,
    per_node: Annotated[bool, typer.Option("--per-node", help="Also a row for every sensor.")] = False,
    changes: ReadingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge a run's best round, on its own data or on others."""
    from cnfgnn.data.windows import SPLITS
    from cnfgnn.runs.evaluate import evaluate_run
    from cnfgnn.runs.events import plain
    from cnfgnn.runs.folder import Run
    from cnfgnn.runs.scores import scores_as_dict

    if split not in SPLITS:
        raise ConfigError("--split", f"there is no split {split!r}", SPLITS)
    opened = Run.open(run)
    readings = _data_of(opened, data, changes)
    scores = scores_as_dict(evaluate_run(opened, readings, split), readings.readings.ids)
    if as_json:
        print(json.dumps(plain({"run": str(run), "split": split, **scores}), allow_nan=False))
        return
    console = progress.out()
    title = f"{opened.config.method}, round {opened.progress.best.r_g}, {split}"
    console.print(progress.errors_table(scores, title, _step_minutes(opened)))
    if per_step:
        steps = {str(k + 1): errors for k, errors in enumerate(scores["per_step"])}
        console.print(progress.rows_table("steps ahead", steps))
    if per_node:
        console.print(progress.rows_table("sensor", scores["per_node"]))


@app.command()
def forecast(
    run: RunArgument,
    data: OwnDataArgument = None,
    changes: ReadingOption = None,
    out: Annotated[Path, typer.Option(help="A .csv or .parquet file.")] = Path("forecasts.csv"),
) -> None:
    """Write the next readings of every sensor: a row per time, a column per sensor."""
    if out.suffix not in (".csv", ".parquet"):
        raise ConfigError("--out", f"{out.name!r} has no such ending", [".csv", ".parquet"])
    if not out.absolute().parent.is_dir():
        raise StorageError(out, "there is no such folder")
    from cnfgnn.runs.folder import Run
    from cnfgnn.runs.forecast import forecast_run, unusual_inputs

    opened = Run.open(run)
    readings = _data_of(opened, data, changes)
    frame = forecast_run(opened, readings)
    _say(unusual_inputs(opened, readings))
    is_csv = out.suffix == ".csv"
    write_whole(out, frame.to_csv(float_format="%.4f").encode() if is_csv else frame.to_parquet())
    silent = [sensor for sensor in frame.columns if frame[sensor].isna().all()]
    if silent:
        more = f" and {len(silent) - 5} more" if len(silent) > 5 else ""
        print(f"no recent reading, so no forecast: {', '.join(silent[:5])}{more}", file=sys.stderr)
    new = [sensor for sensor in frame.columns if sensor not in set(opened.data.sensors)]
    if new:
        print(f"new to the run, forecast with everybody's weights: {', '.join(new[:5])}", file=sys.stderr)
    print(f"{out}: {len(frame)} steps from {frame.index[0]} to {frame.index[-1]}, {frame.shape[1]} sensors")


@app.command()
def runs(folder: Annotated[Path, typer.Argument(help="Where runs are.")] = Path("runs")) -> None:
    """List the runs of a folder."""
    from cnfgnn.runs.folder import Run

    table = Table("run", "method", "data", "seed", "rounds", "best", "validation RMSE", "state")
    for manifest in sorted(folder.glob("*/manifest.json")):
        try:
            run = Run.open(manifest.parent)
        except CnfgnnError as problem:
            table.add_row(printable(manifest.parent.name), "", "", "", "", "", "", str(problem))
            continue
        history, config = run.progress.history, run.config
        kind = "masked_rmse" if config.data.missing == "masked" else "rmse"
        best = (
            [str(run.progress.best.r_g), f"{getattr(run.progress.best.validation, kind):.3f}"]
            if history
            else ["", ""]
        )
        state = "finished" if run.finished else "not finished"
        name = run.data.name
        table.add_row(
            printable(run.folder.name), config.method, name, str(config.seed), str(len(history)), *best, state
        )
    if not table.row_count:
        print(f"no runs in {printable(folder)}")
        return
    progress.out().print(table)


@app.command()
def settings(
    method: Annotated[str, typer.Option(help="See `cnfgnn methods`.")] = "cnfgnn",
    node_size: Annotated[str, typer.Option("--size", help="63k or 727k: GRU baselines.")] = "63k",
    like: Annotated[str | None, typer.Option(help="Published settings of metr-la or pems-bay.")] = None,
) -> None:
    """Print every setting of a method with its value, as a TOML file that --config takes."""
    print(toml.dump(preset(method, node_size, like_of(like))), end="")


@app.command()
def methods() -> None:
    """List the methods of the paper's tables."""
    table = Table("name", "in the paper", "sizes", "federated", "new sensors")
    names = {name: alias for alias, name in ALIASES.items()}
    for method in METHODS.values():
        alias = f" (or {names[method.name]})" if method.name in names else ""
        yes_no = ["yes" if flag else "no" for flag in (method.federated, method.inductive)]
        table.add_row(method.name + alias, method.label, ", ".join(method.sizes), *yes_no)
    progress.out().print(table)


def _say(found: Iterable[Finding]) -> None:
    """What a person should know about the readings, beside what the command prints."""
    for finding in found:
        print(f"note: {finding}", file=sys.stderr, flush=True)


def _data_of(run: Run, data: Path | None, changes: list[str] | None) -> Dataset:
    """The data a person names, read as the run's own were, or else those the run was trained on."""
    from cnfgnn.data.source import open_data
    from cnfgnn.runs.evaluate import open_run_data

    if data is None and not changes:
        return open_run_data(run)
    found = open_data(run.config.with_changes(reading_changes(changes)), data)
    if data is None:
        run.check_same_sensors(found)
    return found


def _tell_understood(data: Dataset) -> None:
    if data.readings.notes:
        print(f"{data.readings.source}: {'; '.join(data.readings.notes)}", file=sys.stderr)


def _step_minutes(run: Run) -> float:
    return float(run.data.step_seconds) / 60


def _new_folder(config: Config, data: Dataset) -> Path:
    """A name nobody has taken, under runs/."""
    method = method_of(config.method).name
    stem = f"{method}-{data.name.replace(' ', '-')}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = Path("runs") / stem, 2
    while folder.exists():
        folder, number = Path("runs") / f"{stem}-{number}", number + 1
    return folder


def main() -> None:
    """Run a command; what a person can mend is said in one sentence."""
    try:
        end_with_parent()
        keep_freed_memory()
        app(standalone_mode=True)
    except CnfgnnError as problem:
        print(f"cnfgnn: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
    except OSError as problem:
        if problem.errno != errno.ENAMETOOLONG:
            raise
        print(f"cnfgnn: {problem.filename}: {problem.strerror}", file=sys.stderr)
        sys.exit(ConfigError.exit_code)
