"""The commands that run a task at the sites of a federation: train, evaluate, forecast."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cnfgnn.cli import progress
from cnfgnn.cli.federation_arguments import RunName, ServerArgument, WaitOption
from cnfgnn.cli.settings import (
    ChangesOption,
    ConfigOption,
    IntervalsOption,
    LikeOption,
    MethodOption,
    SeedOption,
    SizeOption,
    SplitOption,
    changes_to_go_on,
    check_split,
    levels_of,
    refuse_with_from,
    refuse_with_resume,
    resolve,
)
from cnfgnn.config.presets import PRIVATE
from cnfgnn.config.settings import Config
from cnfgnn.errors import NodeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cnfgnn.federation.task import Task

DEFAULT_METHOD = PRIVATE
RecordOption = Annotated[
    bool,
    typer.Option(
        "--record", help="Keep the hidden states that sites send in the run folder, for cnfgnn attack."
    ),
]


# ---- train ----------------------------------------------------------------------------------------------


def train(
    kit: ServerArgument,
    method: MethodOption = None,
    node_size: SizeOption = None,
    like: LikeOption = None,
    config: ConfigOption = None,
    changes: ChangesOption = None,
    seed: SeedOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the new run.")] = None,
    resume: Annotated[str | None, typer.Option(help="Resume the run of this name.")] = None,
    earlier: Annotated[
        str | None,
        typer.Option("--from", help="The name of a run to go on from: its weights and settings."),
    ] = None,
    wait: WaitOption = 60.0,
    record: RecordOption = False,
) -> None:
    """Train with the connected sites; the run folder is written to runs/ of the server's kit.

    The method is cnfgnn-private unless another one is asked for. Each site blurs its readings by its own
    `blur`; nothing that the server sends changes it. With --from, a new run goes on from the weights of an
    earlier one with the readings that sites have now, and takes a third of the rounds.
    """
    from cnfgnn.federation.task import Task, check_federated, settings_of

    if resume is not None:
        settings_given = {"--method": method, "--like": like, "--config": config, "--set": changes}
        refuse_with_resume(
            {"--from": earlier, **settings_given, "--seed": seed, "--size": node_size, "--name": name}
        )
        task = Task("train", resume, resume=True, wait=wait, record=record)
    elif earlier is not None:
        refuse_with_from({"--size": node_size, "--like": like})
        from cnfgnn.runs.folder import Run  # loads PyTorch
        from cnfgnn.runs.warm_start import check_same_architecture

        before = Run.open(_folder(kit, earlier)).config
        wanted = changes_to_go_on(before, None, method, config, changes or [], seed, None)
        check_same_architecture(before, wanted)  # here, before any site is asked
        run_name = name or _new_name(before)
        task = Task("train", run_name, settings=wanted, earlier=earlier, wait=wait, record=record)
    else:
        settings = resolve(None, method, node_size, like, config, changes or [], seed, None, DEFAULT_METHOD)
        check_federated(settings)
        if record:
            from cnfgnn.federation.server.federated_run import check_recordable  # loads PyTorch

            check_recordable(settings.method, settings.model.levels)
        chosen, given_keys = settings_of(settings), sorted(settings.given)
        run_name = name or _new_name(settings)
        task = Task("train", run_name, settings=chosen, given=given_keys, wait=wait, record=record)
    _print_training(kit, task.run, _trained(kit, task))


def _trained(kit: Path, task: Task) -> Mapping[str, Any]:
    """Train to the end; Ctrl-C ends the command and says how to resume."""
    try:
        return _run_task(kit, task)
    except KeyboardInterrupt:
        from cnfgnn.federation.operator.tasks import run_exists

        if run_exists(kit, task.run):
            told = f"stopped; to resume: cnfgnn federation train {kit} --resume {task.run}"
        else:
            told = "stopped before the run began"
        print(f"\n{told}", file=sys.stderr, flush=True)
        raise typer.Exit(130) from None


def _new_name(settings: Config) -> str:
    return f"{settings.method}-seed{settings.seed}-{time.strftime('%Y%m%d-%H%M%S')}"


# ---- evaluate and forecast ------------------------------------------------------------------------------


def evaluate(
    kit: ServerArgument,
    run: RunName,
    split: SplitOption = "test",
    wait: WaitOption = 60.0,
    record: RecordOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Evaluate a run's best round at the sites; hidden states and summed errors are sent to the server.

    The errors are against the blurred copies, unless every owner has set tell_errors. Each site writes its
    true errors to evaluations/ in its own kit.
    """
    from cnfgnn.federation.task import Task

    check_split(split)
    result = _run_task(kit, Task("evaluate", run, split=split, wait=wait, record=record))
    scores = result["scores"]
    _print_recording(kit, run, result)
    if as_json:
        about = ("errors_against", "without_trust", "told", "blur")
        print(json.dumps({**scores, **{key: result[key] for key in about}}))
        return
    progress.out().print(progress.errors_table(scores, f"{run}, {split}", result["step"] / 60))
    _print_about_errors(result)
    _print_absent_sites(result)


def forecast(
    kit: ServerArgument, run: RunName, intervals: IntervalsOption = "", wait: WaitOption = 60.0
) -> None:
    """Have every site write forecasts for its sensors to forecasts/ in its own kit; none are sent.

    Forecasts begin after the newest time step that at least half of the sites have reached. If a site has no
    forecast, the others still get theirs; the command names that site and ends with exit code 3.

    With --intervals, each site adds the bounds of intervals, which it has learned from its own errors.
    """
    from cnfgnn.federation.operator.tasks import TaskError
    from cnfgnn.federation.task import Task

    result = _run_task(kit, Task("forecast", run, intervals=levels_of(intervals), wait=wait))
    if result["sites"]:
        span = f"from {result['from']} to {result['to']}"
        print(f"forecasts {span} are at sites {', '.join(result['sites'])}")
        print("each site has its own in forecasts/latest.csv of its kit")
    if result["without"]:
        problems = [f"site {name!r} has no forecast: {reason}" for name, reason in result["without"].items()]
        raise TaskError("; ".join(problems), NodeError.exit_code)


def _run_task(kit: Path, task: Task) -> Mapping[str, Any]:
    from cnfgnn.cli.sites import sites_watcher

    watcher = sites_watcher()
    try:
        watcher.say(f"{task.do} {task.run}: connecting to the server")
        from cnfgnn.federation.operator.tasks import run_task  # loads the engine, which takes a moment

        return run_task(kit, task, watcher)
    finally:
        watcher.end()


# ---- what is printed ------------------------------------------------------------------------------------


def _print_training(kit: Path, run: str, result: Mapping[str, Any]) -> None:
    title = f"{result['method']}, best round {result['best_round']} of {result['rounds']}, test"
    progress.out().print(progress.errors_table(result["scores"], title, result["step"] / 60))
    _print_about_errors(result)
    _print_absent_sites(result)
    if result["left_out"]:
        left_out = ", ".join(result["left_out"])
        print(
            f"the best round was chosen without these sensors, which were absent in some rounds: {left_out}"
        )
    transferred = progress.size(result["bytes"]["per_site"])
    print(f"transferred up to the best round, counted per site: {transferred}")
    _print_recording(kit, run, result)
    print(f"run: {_folder(kit, run)}\nnext: cnfgnn federation forecast {kit} {run}")


def _print_about_errors(result: Mapping[str, Any]) -> None:
    """Say what the errors of a table are about."""
    true_ones = "each site has its true errors in evaluations/ of its kit"
    if result["errors_against"] == "copies":
        print(f"these are errors against the blurred copies of the readings; {true_ones}")
    elif result["without_trust"]:
        print(f"these are errors with all that the network adds, of which sensors take a share; {true_ones}")
    for site, errors in result["told"].items():
        shown = f"RMSE {progress.number(errors['rmse'])}, MAE {progress.number(errors['mae'])}"
        print(f"true errors that site {site} tells: {shown}")


def _print_absent_sites(result: Mapping[str, Any]) -> None:
    if result["absent"]:
        print(f"without the sensors of sites {', '.join(result['absent'])}, which were absent")


def _print_recording(kit: Path, run: str, result: Mapping[str, Any]) -> None:
    """Say what a recording is."""
    if "recording" in result:
        folder = _folder(kit, run)
        print(
            f"{folder / result['recording']} keeps the hidden states that the sites sent, from which whoever"
            " has this file can estimate their blurred copies, or their readings where nothing is blurred:"
            f" delete it after cnfgnn attack {folder} DATA",
            file=sys.stderr,
            flush=True,
        )


def _folder(kit: Path, run: str) -> Path:
    from cnfgnn.federation.task import RUNS

    return kit / RUNS / run
