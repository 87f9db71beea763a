"""The commands that train, evaluate and forecast on this machine, and list runs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from cnfgnn.algorithm.methods import method_of
from cnfgnn.cli import progress
from cnfgnn.cli.settings import (
    ChangesOption,
    ConfigOption,
    IntervalsOption,
    LikeOption,
    MethodOption,
    ReadingOption,
    SeedOption,
    SizeOption,
    SplitOption,
    changes_to_go_on,
    check_split,
    levels_of,
    reading_changes,
    refuse_with_from,
    refuse_with_resume,
    resolve,
)
from cnfgnn.config.settings import Config
from cnfgnn.errors import CnfgnnError, ConfigError, DataError, printable
from cnfgnn.files import check_can_be_written, write_whole

if TYPE_CHECKING:
    from cnfgnn.data.dataset import Dataset
    from cnfgnn.data.quality import Finding
    from cnfgnn.data.windows import Split
    from cnfgnn.runs.folder import Run
    from cnfgnn.runs.scores import Errors
    from cnfgnn.runs.training_loop import Result

SHOWN_SENSORS = 5  # in a line that lists some of them
FORECAST_SUFFIXES = (".csv", ".parquet")
DataArgument = Annotated[
    Path | None, typer.Argument(help="A file or folder of readings; without it, the synthetic city.")
]
OtherDataArgument = Annotated[
    Path | None, typer.Argument(help="Readings to use instead of those that the run was trained on.")
]
RunArgument = Annotated[Path, typer.Argument(help="A run folder.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def train(
    data: DataArgument = None,
    method: MethodOption = None,
    node_size: SizeOption = None,
    like: LikeOption = None,
    config: ConfigOption = None,
    changes: ChangesOption = None,
    seed: SeedOption = None,
    device: Annotated[
        str | None, typer.Option(help="Device to compute on: auto, cpu, cuda, cuda:1 ...")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the new run; it must not exist yet.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Run folder of an interrupted run to resume.")] = None,
    earlier: Annotated[
        Path | None,
        typer.Option("--from", help="A run to go on from: its weights and settings, with newer readings."),
    ] = None,
) -> None:
    """Train a method, or resume an interrupted run.

    DATA is a METR-LA or PEMS-BAY .h5 file, or a folder with readings.csv (a column of times such as
    2024-01-31 08:05, then one column per sensor, empty where a reading is missing) and sensors.csv (id,
    latitude, longitude) or edges.csv (from, to, weight or distance). `cnfgnn settings` lists what --set and
    --config can change. A resumed run gives the same result as one that was never interrupted. With --from,
    a new run begins with the weights of an earlier one and takes a third of the rounds; without DATA it reads
    the earlier run's file or folder again, which may have grown.
    """
    if resume is not None:
        given = {
            "--from": earlier,
            "--method": method,
            "--size": node_size,
            "--like": like,
            "--config": config,
            "--set": changes,
            "--seed": seed,
            "--device": device,
            "--out": out,
        }
        run, readings = _resumed(resume, data, given)
    elif earlier is not None:
        given = {"--size": node_size, "--like": like}
        run, readings = _begun_from(earlier, data, given, (method, config, changes or [], seed, device), out)
    else:
        chosen = (method, node_size, like, config, changes or [], seed, device)
        run, readings = _begun(data, chosen, out)
    if run.finished:
        print(f"{run.folder} is finished; next: cnfgnn evaluate {run.folder}", file=sys.stderr)
        return
    _print_result(run, readings, _trained(run, readings))


def _resumed(folder: Path, data: Path | None, given: Mapping[str, Any]) -> tuple[Run, Dataset]:
    from cnfgnn.runs.folder import Run

    refuse_with_resume(given)
    run = Run.open(folder)
    return run, _data_of(run, data, None)


def _begun(data: Path | None, chosen: tuple[Any, ...], out: Path | None) -> tuple[Run, Dataset]:
    from cnfgnn.data.source import open_data
    from cnfgnn.runs.folder import Run

    settings = resolve(data, *chosen)
    readings = open_data(settings, data)
    run = Run.create(out or _new_folder(settings, readings), settings, readings)
    _print_findings(readings, settings)
    return run, readings


def _begun_from(
    folder: Path, data: Path | None, given: Mapping[str, Any], chosen: tuple[Any, ...], out: Path | None
) -> tuple[Run, Dataset]:
    from cnfgnn.runs.evaluate import data_of
    from cnfgnn.runs.folder import Run

    refuse_with_from(given)
    earlier = Run.open(folder)
    changes = changes_to_go_on(earlier.config, data, *chosen)
    readings = data_of(earlier, earlier.config.with_changes(changes), data)
    return _going_on(earlier, readings, out, changes), readings


def _going_on(earlier: Run, readings: Dataset, out: Path | None, changes: Mapping[str, Any]) -> Run:
    """Begin a run that goes on from an earlier one, and say what that means for its sensors."""
    from cnfgnn.runs.train import begin_from

    run = begin_from(earlier, readings, out or _new_folder(earlier.config, readings), changes)
    _print_findings(readings, run.config)
    assert run.origin is not None
    rounds = f"{run.config.training.rounds} rounds; from the beginning it would be {run.origin.cold_rounds}"
    print(f"goes on from round {run.origin.round} of {earlier.folder}, {rounds}", file=sys.stderr)
    known = set(earlier.data.sensors)
    if new := [sensor for sensor in readings.readings.ids if sensor not in known]:
        print(f"new sensors: {_listed(new)}", file=sys.stderr)
    if gone := sorted(known - set(readings.readings.ids)):
        print(f"sensors that are gone: {_listed(gone)}", file=sys.stderr)
    return run


def _trained(run: Run, readings: Dataset) -> Result:
    """Train a run to its end; Ctrl-C ends the command and says how to resume."""
    from cnfgnn.runs.folder import Run
    from cnfgnn.runs.train import train_run

    if readings.readings.notes:
        print(f"{readings.readings.source}: {'; '.join(readings.readings.notes)}", file=sys.stderr)
    print(f"run {run.folder}", file=sys.stderr, flush=True)
    try:
        return train_run(run, readings, progress.watcher())
    except KeyboardInterrupt:
        rounds = len(Run.open(run.folder).progress.history)
        saved = "1 round is saved" if rounds == 1 else f"{rounds} rounds are saved"
        print(f"\nstopped; {saved}; to resume: cnfgnn train --resume {run.folder}", file=sys.stderr)
        raise typer.Exit(130) from None


def _print_result(run: Run, readings: Dataset, result: Result) -> None:
    from cnfgnn.runs.scores import scores_as_dict

    best = result.progress.best
    title = f"{run.config.method}, best round {best.r_g} of {len(result.progress.history)}, test"
    scores = scores_as_dict(result.test, readings.readings.ids)
    progress.out().print(progress.errors_table(scores, title, _step_minutes(run)))
    _print_intervals(run, scores)
    _print_baselines(run, result.test.overall, _baselines(run, readings, "test"))
    moved = best.training_bytes
    per_node, per_site = progress.size(moved.per_node), progress.size(moved.per_site)
    print(f"traffic until the best round: {per_node} counted per node, {per_site} counted per site")
    print(f"next: cnfgnn forecast {run.folder} --out forecasts.csv")


def _print_intervals(run: Run, scores: Mapping[str, Any]) -> None:
    table = progress.intervals_table(scores, _step_minutes(run))
    if table is not None:
        progress.out().print(table)


def _baselines(run: Run, readings: Dataset, split: Split) -> dict[str, Errors]:
    from cnfgnn.runs.baselines import all_baselines

    return {name: scores.overall for name, scores in all_baselines(readings, run.config.data, split).items()}


def _print_baselines(run: Run, errors: Errors, baselines: Mapping[str, Errors]) -> None:
    """Print the errors of simple forecasts on the same windows, and say so if one of them is better."""
    metric = run.config.data.metric
    shown = {name: getattr(baseline, metric) for name, baseline in baselines.items()}
    label = metric.replace("_", " ").replace("rmse", "RMSE")
    listed = ", ".join(f"{name} {value:.3f}" for name, value in shown.items())
    print(f"{label} of simple forecasts: {listed}")
    best = min(shown, key=lambda name: shown[name])
    own = getattr(errors, metric)
    if shown[best] < own:
        method = run.config.method
        print(f"a simple forecast is better here: {best} has {shown[best]:.3f}, {method} {own:.3f}")


def evaluate(
    run: RunArgument,
    data: OtherDataArgument = None,
    split: SplitOption = "test",
    per_step: Annotated[bool, typer.Option("--per-step", help="Add the errors of each step ahead.")] = False,
    per_node: Annotated[bool, typer.Option("--per-node", help="Add the errors of each sensor.")] = False,
    predictions: Annotated[
        Path | None,
        typer.Option(
            help="A .parquet file to write: sensor, issued, step, truth, observed, forecast, ranges."
        ),
    ] = None,
    changes: ReadingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate the best round of a run, on its own data or on others.

    On the test split, the intervals of 80 % and 95 % are evaluated too: the share of observed readings within
    them, their mean width, and the interval score.
    """
    from cnfgnn.runs.evaluate import evaluate_run
    from cnfgnn.runs.events import plain
    from cnfgnn.runs.folder import Run
    from cnfgnn.runs.predictions import write_predictions
    from cnfgnn.runs.scores import scores_as_dict

    known_split = check_split(split)
    if predictions is not None:
        if predictions.suffix != ".parquet":
            raise ConfigError("--predictions", f"cannot write {predictions.name!r}: give a .parquet file")
        check_can_be_written(predictions)
    opened = Run.open(run)
    readings = _data_of(opened, data, changes)
    found = evaluate_run(opened, readings, known_split)
    if predictions is not None:
        rows = write_predictions(opened, readings, known_split, predictions)
        print(f"{predictions}: {rows} forecasts", file=sys.stderr)
    scores = scores_as_dict(found, readings.readings.ids)
    baselines = _baselines(opened, readings, known_split)
    if as_json:
        simple = {name: vars(errors) for name, errors in baselines.items()}
        content = {"run": str(run), "split": split, **scores, "baselines": simple}
        print(json.dumps(plain(content), allow_nan=False))
        return
    console = progress.out()
    title = f"{opened.config.method}, round {opened.progress.best.r_g}, {split}"
    console.print(progress.errors_table(scores, title, _step_minutes(opened)))
    _print_intervals(opened, scores)
    _print_baselines(opened, found.overall, baselines)
    if per_step:
        _print_part(scores, "per_step", "steps ahead")
    if per_node:
        _print_part(scores, "per_node", "sensor")


def _print_part(scores: Mapping[str, Any], part: str, label: str) -> None:
    """Print the errors and intervals of each step ahead or sensor."""

    def named(found: Any) -> dict[str, Any]:
        return found if isinstance(found, dict) else {str(k): one for k, one in enumerate(found, start=1)}

    rows = named(scores[part])
    progress.out().print(progress.rows_table(label, rows))
    if intervals := {level: named(found[part]) for level, found in (scores["intervals"] or {}).items()}:
        of_row = {name: {level: found[name] for level, found in intervals.items()} for name in rows}
        progress.out().print(progress.interval_rows(label, of_row))


def forecast(
    run: RunArgument,
    data: OtherDataArgument = None,
    changes: ReadingOption = None,
    intervals: IntervalsOption = "",
    out: Annotated[Path, typer.Option(help="A .csv or .parquet file.")] = Path("forecasts.csv"),
) -> None:
    """Forecast the readings that follow the last ones: one row per time step, one column per sensor.

    With --intervals 80, two columns per sensor follow, for example "773869 low 80" and "773869 high 80": 80 %
    of the sensor's readings should lie between them.
    """
    levels = levels_of(intervals)
    if out.suffix not in FORECAST_SUFFIXES:
        raise ConfigError("--out", f"cannot write a file with the name {out.name!r}", FORECAST_SUFFIXES)
    check_can_be_written(out)
    from cnfgnn.runs.folder import Run
    from cnfgnn.runs.forecast import forecast_run, unknown_ahead, unusual_inputs

    opened = Run.open(run)
    readings = _data_of(opened, data, changes)
    frame = forecast_run(opened, readings, levels)
    sensors = list(readings.readings.ids)
    _print_notes(unusual_inputs(opened, readings))
    for sentence in unknown_ahead(opened, readings):
        print(f"note: {sentence}", file=sys.stderr)
    if out.suffix == ".csv":
        write_whole(out, frame.to_csv(float_format="%.4f").encode())
    else:
        write_whole(out, frame.to_parquet())
    unknown = frame.iloc[:, : len(sensors)].isna().all().to_numpy()
    silent = readings.readings.missing[-opened.config.data.history :].all(axis=0) & ~unknown
    for problem, of in (
        ("no forecast without any reading", unknown),
        ("no recent reading, forecast from older ones", silent),
    ):
        if of.any():
            print(
                f"{problem}: {_listed([s for s, one in zip(sensors, of, strict=True) if one])}",
                file=sys.stderr,
            )
    known = set(opened.data.sensors)
    new = [sensor for sensor in sensors if sensor not in known]
    if new:
        print(f"not in the training data, forecast with the shared weights: {_listed(new)}", file=sys.stderr)
    span = f"{len(frame)} steps from {frame.index[0]} to {frame.index[-1]}"
    bounds = f", with intervals of {' and '.join(f'{level} %' for level in levels)}" if levels else ""
    print(f"{out}: {span}, {len(sensors)} sensors{bounds}")


def runs(
    folder: Annotated[Path, typer.Argument(help="The folder that contains the runs.")] = Path("runs"),
) -> None:
    """List the runs in a folder."""
    from cnfgnn.runs.folder import Run

    if not folder.is_dir():
        raise DataError(folder, "no such folder")
    table = Table("run", "method", "data", "seed", "rounds", "best", "validation RMSE", "state")
    for manifest in sorted(folder.glob("*/manifest.json")):
        try:
            row = _run_row(Run.open(manifest.parent))
        except CnfgnnError as problem:
            row = [printable(manifest.parent.name), "", "", "", "", "", "", str(problem)]
        table.add_row(*row)
    if not table.row_count:
        print(f"no runs in {printable(folder)}")
        return
    progress.out().print(table)


def _run_row(run: Run) -> list[str]:
    """One line of the list of runs."""
    config, rounds = run.config, len(run.progress.history)
    best_round = best_rmse = ""
    if rounds:
        best = run.progress.best
        best_round, best_rmse = str(best.r_g), f"{getattr(best.validation, config.data.metric):.3f}"
    state = "finished" if run.finished else "not finished"
    name = run.data.name
    return [
        printable(run.folder.name),
        config.method,
        name,
        str(config.seed),
        str(rounds),
        best_round,
        best_rmse,
        state,
    ]


def _print_notes(found: Iterable[Finding]) -> None:
    """Print what looks wrong with the readings to stderr, apart from the output of the command."""
    for finding in found:
        print(f"note: {finding}", file=sys.stderr, flush=True)


def _print_findings(readings: Dataset, config: Config) -> None:
    from cnfgnn.data.quality import findings

    _print_notes(findings(readings, config.data))
    _print_input_notes(readings, config)


def _print_input_notes(data: Dataset, config: Config) -> None:
    """Print what a user should know about other variables and covariates to stderr."""
    from cnfgnn.data.inputs import ending_covariates
    from cnfgnn.runs.simulation import unused_inputs

    if note := unused_inputs(data.readings, config):
        print(f"note: {note}", file=sys.stderr, flush=True)
        return
    for sentence in ending_covariates(data.readings, int(data.readings.seconds[-1])):
        print(f"note: {sentence}", file=sys.stderr, flush=True)


def _listed(sensors: list[str]) -> str:
    more = len(sensors) - SHOWN_SENSORS
    shown = ", ".join(sensors[:SHOWN_SENSORS])
    return f"{shown} and {more} more" if more > 0 else shown


def _data_of(run: Run, data: Path | None, changes: list[str] | None) -> Dataset:
    """The named data, read with the settings of the run, or the data that the run was trained on."""
    from cnfgnn.runs.evaluate import data_of

    found = data_of(run, run.config.with_changes(reading_changes(changes)), data)
    if data is None:
        run.check_same_sensors(found)
    return found


def _step_minutes(run: Run) -> float:
    return run.data.step_seconds / 60


def _new_folder(config: Config, data: Dataset) -> Path:
    """A folder under runs/ that does not exist yet."""
    method = method_of(config.method).name
    stem = f"{method}-{data.name.replace(' ', '-')}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = Path("runs") / stem, 2
    while folder.exists():
        folder, number = Path("runs") / f"{stem}-{number}", number + 1
    return folder
