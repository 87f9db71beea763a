"""The commands of `cnfgnn federation`: kits, processes, and tasks at sites that keep their readings."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cnfgnn.cli import progress
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
from cnfgnn.errors import ConfigError, NodeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cnfgnn.federation.server_task import Task

federation_app = typer.Typer(
    no_args_is_help=True,
    help="Train with sites that keep their readings: make kits, start them, train, evaluate, forecast.",
)
DEFAULT_METHOD = PRIVATE
KitArgument = Annotated[Path, typer.Argument(help="Folder of a server's or site's kit.")]
ServerArgument = Annotated[Path, typer.Argument(help="Folder of the server's kit.")]
RunName = Annotated[str, typer.Argument(help="Name of the run, a folder in runs/ of the server's kit.")]
RecordOption = Annotated[
    bool,
    typer.Option(
        "--record", help="Keep the hidden states that sites send in the run folder, for cnfgnn attack."
    ),
]


def _seconds_to_wait(wait: float) -> float:
    if not 0 <= wait < math.inf:
        raise ConfigError("--wait", f"must be a number of seconds from 0 on, not {wait:g}")
    return wait


WaitOption = Annotated[
    float,
    typer.Option(help="Seconds to wait for sites that are not connected yet.", callback=_seconds_to_wait),
]


@federation_app.callback()
def require_engine() -> None:
    if importlib.util.find_spec("nvflare") is None:
        raise ConfigError("federation", "NVIDIA FLARE is not installed: pip install 'cnfgnn[federation]'")


@federation_app.command()
def init(
    project: Annotated[
        Path, typer.Argument(help="Project file: the server, the sites with their sensors, the graph.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write the kits to; it must not exist.")] = Path("kits"),
    authority: Annotated[
        Path | None,
        typer.Option(help="Folder `authority` of earlier kits, to renew certificates or add a site."),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help="Make a kit for this site only, e.g. after `revoke`; needs --authority."),
    ] = None,
) -> None:
    """Make a kit for the server and for each site, with certificates, settings and start scripts."""
    from cnfgnn.federation.kits import make_kits
    from cnfgnn.federation.project import read_project

    kits = make_kits(read_project(project), out, authority=authority, only=only)
    for name, kit in kits.items():
        print(f"{name}: {kit}")
    if only is not None:
        print(f"next: at site {only}, replace the folder startup/ of the old kit with the new one, then run:")
        print("  cnfgnn federation up KIT")
        return
    print(f"authority: {out.absolute() / 'authority'} (keep it safe: it can sign further kits)")
    print("next: give each site its folder; there, set `readings` in local/site.toml. Then run:")
    print("  cnfgnn federation up KIT      (first at the server)")
    print("  cnfgnn federation check KIT   (at each site)")
    print("  cnfgnn federation up KIT      (at each site)")


@federation_app.command()
def up(kit: KitArgument = Path()) -> None:
    """Start the server or the site of a kit in the background."""
    from cnfgnn.federation.certificates import check_valid
    from cnfgnn.federation.kits import record_program, role
    from cnfgnn.federation.processes import running, wait_until_listening
    from cnfgnn.federation.processes import up as start

    was_running = running(kit) is not None
    pid = start(kit)
    record_program(kit)
    wait_until_listening(kit, pid)
    for warning in check_valid(kit):
        print(f"warning: {warning}", file=sys.stderr)
    state = "is already running" if was_running else "is up"
    print(f"the {role(kit)} {state}, process {pid}; log: {kit / 'log.txt'}")


@federation_app.command()
def down(kit: KitArgument = Path()) -> None:
    """Stop the server or the site of a kit with all its processes."""
    from cnfgnn.federation.kits import role
    from cnfgnn.federation.processes import down as stop

    print(f"the {role(kit)} {'is stopped' if stop(kit) else 'was not running'}")


@federation_app.command()
def status(
    kit: KitArgument = Path(), as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show the state of a kit: the sites and task of a server, or the connection and forecast of a site."""
    from cnfgnn.federation.kit_status import server_report, site_report
    from cnfgnn.federation.kits import role
    from cnfgnn.federation.processes import running

    pid, kit_role = running(kit), role(kit)
    report: dict[str, Any] = {"kind": kit_role, "pid": pid}
    report |= site_report(kit, pid) if kit_role == "site" else server_report(kit, pid)
    if as_json:
        print(json.dumps(report))
        return
    process = f"process {pid}" if pid else "does not run"
    if kit_role == "server":
        print(f"server: {process}")
        _print_server(report)
    else:
        working = ", working on a task" if report["task"] else ""
        print(f"site {report['site']}: {process}{working}")
        _print_site(report)
    for problem in report["problems"]:
        print(f"problem: {problem}")


def _print_site(report: Mapping[str, Any]) -> None:
    from cnfgnn.cli.live_federation import service_lines
    from cnfgnn.federation.kit_status import failure_lines
    from cnfgnn.federation.site_status import local_time

    if report["heard"] is not None:
        print(f"  the server at {report['server']} received a heartbeat {report['heard']:.0f} s ago")
    else:
        print("  the server receives no heartbeats")
    if evaluation := report["evaluation"]:
        shown = f"RMSE {progress.number(evaluation['rmse'])}, MAE {progress.number(evaluation['mae'])}"
        made = f"made {local_time(evaluation['time'])}"
        print(f"  last evaluation ({evaluation['split']}): {shown}; {evaluation['file']}, {made}")
    if forecast := report["forecast"]:
        span = f"from {forecast['from']} to {forecast['to']}"
        print(f"  last forecast: {forecast['file']}, made {local_time(forecast['time'])}, {span}")
    else:
        print("  no forecast yet")
    if live := report["live"]:
        print(f"  live on {live['address']}: its page, /forecasts, /health and /metrics are there")
        for line in service_lines(live):
            print(f"    {line}")
    for line in failure_lines(report["failed"]):
        print(f"  failed: {line}")


def _print_server(report: Mapping[str, Any]) -> None:
    from cnfgnn.cli.live_federation import live_lines
    from cnfgnn.cli.sites import headline, sites_table

    now = time.time()
    for name, sensors in report["sites"].items():
        seen = report["connected"].get(name)
        connection = "not connected"
        if seen is not None:
            connection = f"connected, last heartbeat {max(0.0, now - seen):.0f} s ago"
        print(f"  {name}: {sensors} sensor{'s' if sensors != 1 else ''}, {connection}")
        for line in report["about"][name]:
            print(f"    {line}")
    if report["task"] is not None:
        print(headline(report["task"]))
        for line in live_lines(report["task"]):
            print(line)
        if report["task"].get("sites"):
            progress.out().print(sites_table(report["task"]))
        for line in report["task"].get("warnings") or []:
            print(f"warning: {line}")


@federation_app.command()
def revoke(
    kit: ServerArgument, site: Annotated[str, typer.Argument(help="The site whose kit was copied or stolen.")]
) -> None:
    """At the server: revoke all certificates of a site and close its connections."""
    from cnfgnn.federation.certificates import revoke as revoke_certificates
    from cnfgnn.federation.server_status import read_server_status
    from cnfgnn.federation.task_client import check_server_kit

    check_server_kit(kit)
    seen = read_server_status(kit).get("sites", {}).get(site, {}).get("serials", [])
    new = revoke_certificates(kit, site, tuple(map(str, seen)))
    certificates = f"{len(new)} certificate{'s' if len(new) != 1 else ''}"
    print(f"{site}: {certificates} revoked; its connections close within seconds")
    print(f"next: cnfgnn federation init PROJECT.toml --authority AUTHORITY --only {site} --out FOLDER")


@federation_app.command()
def clean(
    kit: KitArgument = Path(),
    keep: Annotated[
        int | None,
        typer.Option(min=0, help="How many finished tasks to keep; by default the kit's `keep_tasks`."),
    ] = None,
) -> None:
    """Remove the logs and settings of old tasks from a kit. Its process may keep running."""
    from cnfgnn.federation.retention import remove_old_tasks

    removed = remove_old_tasks(kit, keep)
    print(f"removed the files of {removed.tasks} tasks, {progress.size(removed.bytes)}")


@federation_app.command()
def check(kit: KitArgument = Path()) -> None:
    """At a site, before it joins: check its readings, clock, certificate and connection to the server."""
    from cnfgnn.federation.kits import record_program, role
    from cnfgnn.federation.preflight import check_site

    role(kit)  # refuses a folder that is not a kit
    record_program(kit)
    for line in check_site(kit):
        print(line)
    print("this site can join")


@federation_app.command()
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
    from cnfgnn.federation.recorded_task import check_recordable
    from cnfgnn.federation.server_task import Task, check_federated, settings_of

    if resume is not None:
        refuse_with_resume(
            {
                "--from": earlier,
                "--method": method,
                "--like": like,
                "--config": config,
                "--set": changes,
                "--seed": seed,
                "--size": node_size,
                "--name": name,
            }
        )
        task = Task("train", resume, resume=True, wait=wait, record=record)
    elif earlier is not None:
        refuse_with_from({"--size": node_size, "--like": like})
        run_name, wanted = _to_go_on(kit, earlier, name, method, config, changes, seed)
        task = Task("train", run_name, settings=wanted, earlier=earlier, wait=wait, record=record)
    else:
        settings = resolve(None, method, node_size, like, config, changes or [], seed, None, DEFAULT_METHOD)
        check_federated(settings)
        if record:
            check_recordable(settings.method, settings.model.levels)
        chosen, given_keys = settings_of(settings), sorted(settings.given)
        run_name = name or _new_name(settings)
        task = Task("train", run_name, settings=chosen, given=given_keys, wait=wait, record=record)
    result = _trained(kit, task)
    _print_training(kit, task.run, result)


def _trained(kit: Path, task: Task) -> Mapping[str, Any]:
    """Train to the end; Ctrl-C ends the command and says how to resume."""
    try:
        return _run_task(kit, task)
    except KeyboardInterrupt:
        from cnfgnn.federation.task_client import run_exists

        if run_exists(kit, task.run):
            told = f"stopped; to resume: cnfgnn federation train {kit} --resume {task.run}"
        else:
            told = "stopped before the run began"
        print(f"\n{told}", file=sys.stderr, flush=True)
        raise typer.Exit(130) from None


@federation_app.command()
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
    from cnfgnn.federation.server_task import Task

    check_split(split)
    result = _run_task(kit, Task("evaluate", run, split=split, wait=wait, record=record))
    scores = result["scores"]
    _print_recording(kit, run, result)
    if as_json:
        about = ("errors_against", "without_personal_weights", "told", "blur")
        print(json.dumps({**scores, **{key: result[key] for key in about}}))
        return
    progress.out().print(progress.errors_table(scores, f"{run}, {split}", _step_minutes(kit, run)))
    _print_about_errors(result)
    _print_absent_sites(result)


@federation_app.command()
def forecast(
    kit: ServerArgument, run: RunName, intervals: IntervalsOption = "", wait: WaitOption = 60.0
) -> None:
    """Have every site write forecasts for its sensors to forecasts/ in its own kit; none are sent.

    Forecasts begin after the newest time step that at least half of the sites have reached. If a site has no
    forecast, the others still get theirs; the command names that site and ends with exit code 3.

    With --intervals, each site adds the bounds of intervals, which it has learned from its own errors.
    """
    from cnfgnn.federation.server_task import Task
    from cnfgnn.federation.task_client import TaskError

    result = _run_task(kit, Task("forecast", run, intervals=levels_of(intervals), wait=wait))
    if result["sites"]:
        span = f"from {result['from']} to {result['to']}"
        print(f"forecasts {span} are at sites {', '.join(result['sites'])}")
        print("each site has its own in forecasts/latest.csv of its kit")
    if result["without"]:
        problems = [f"site {name!r} has no forecast: {reason}" for name, reason in result["without"].items()]
        raise TaskError("; ".join(problems), NodeError.exit_code)


RetrainOption = Annotated[
    str,
    typer.Option(help="Train beside it every hourly, daily, weekly, 6h, 2d ...; a better model goes live."),
]
HoldOutOption = Annotated[
    float,
    typer.Option("--hold-out", help="With --retrain: days at the end that both models are judged by."),
]


@federation_app.command()
def live(
    kit: ServerArgument,
    run: RunName,
    deadline: Annotated[
        float | None,
        typer.Option(help="Seconds after a step at which its forecast is made; default a fifth of the step."),
    ] = None,
    clock: Annotated[
        str, typer.Option(help="system: the sites' clocks; feed: the times of recordings set them.")
    ] = "system",
    speed: Annotated[float, typer.Option(help="With --clock feed: how fast time passes.")] = 1.0,
    host: Annotated[
        str, typer.Option(help="Address of the page; any but this machine's own needs a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the page; 0 chooses a free one.")
    ] = 8708,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="A file with the token that the page asks for.")
    ] = None,
    wait: WaitOption = 60.0,
    retrain: RetrainOption = "",
    hold_out: HoldOutOption = 3.0,
) -> None:
    """Forecast at every step: each site serves the forecasts of its own sensors, until Ctrl-C.

    Each site takes readings in and gives forecasts out as cnfgnn live does; [live] in its local/site.toml
    says where. The page of this command shows who is there, how fast and how complete; no reading and no
    forecast reaches the server. If the server dies, the sites go on by themselves, and the task is started
    again. With --retrain, a training goes on from the live model beside it; the sites judge both models by
    their blurred copies of the last days, and the new one goes live if it is better.
    """
    from cnfgnn.cli.live import CLOCKS, check_installed, token_of

    check_installed()
    if clock not in CLOCKS:
        raise ConfigError("--clock", f"there is no clock {clock!r}", CLOCKS)
    from cnfgnn.federation.live_page import LivePage
    from cnfgnn.federation.live_retraining import RetrainPlan, retraining
    from cnfgnn.federation.server_task import Task
    from cnfgnn.federation.task_client import check_server_kit
    from cnfgnn.live.learning import period_of
    from cnfgnn.live.start import LiveSettings

    check_server_kit(kit)
    plan = RetrainPlan(kit, run, period_of(retrain), hold_out, wait) if retrain else None
    LiveSettings(deadline=deadline, feed=clock == "feed", speed=speed, hold_out=hold_out).check()
    terms = {"deadline": deadline, "feed": clock == "feed", "speed": speed}
    page = LivePage(kit, host, port, token_of(token_file), None if plan is None else plan.period)
    try:
        with page, retraining(plan, terms, _say):
            print(f"the page of this federation: {page.address}", flush=True)
            _follow_live(kit, Task("live", run, wait=wait, live=terms))
    except KeyboardInterrupt:
        print("stopped; the sites have ended their services", file=sys.stderr, flush=True)
        raise typer.Exit(130) from None


def _follow_live(kit: Path, task: Task) -> None:
    """Keep a live task running, and show its status together with its model and the training beside it."""
    from cnfgnn.cli.sites import sites_watcher
    from cnfgnn.federation.live_state import live_state
    from cnfgnn.federation.task_client import keep_live

    watcher = sites_watcher()
    try:
        keep_live(kit, task, lambda status: watcher({**status, "federation": live_state(kit)}), _say)
    finally:
        watcher.end()


@federation_app.command()
def rollback(kit: ServerArgument, run: RunName) -> None:
    """Go back to the model that was live before, in a federation that went live with RUN.

    A live task follows within a second, and all its sites with it.
    """
    from cnfgnn.federation.live_models import FederatedModels
    from cnfgnn.federation.server_task import RUNS
    from cnfgnn.federation.task_client import check_server_kit
    from cnfgnn.runs.folder import Run

    check_server_kit(kit)
    Run.open(kit / RUNS / run)
    switch = FederatedModels(kit, run).rollback("rollback").switches[-1]
    print(f"{switch.after} is live instead of {switch.before}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@federation_app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Folder for kits and runs; it must not exist.")] = Path(
        "runs/federation-demo"
    ),
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 4,
) -> None:
    """Run a whole federation on this machine: four sites as separate processes, one of which is killed and
    rejoins. The result is compared with the simulator's."""
    from cnfgnn.cli.sites import sites_watcher
    from cnfgnn.federation.demo import demonstrate

    watcher = sites_watcher()
    try:
        compared = demonstrate(folder, rounds, watcher, print)
    finally:
        watcher.end()
    progress.out().print(progress.rows_table("test error", compared))
    print(f"kits, readings, the run and the forecasts are in {folder}")


def _run_task(kit: Path, task: Task) -> Mapping[str, Any]:
    from cnfgnn.cli.sites import sites_watcher
    from cnfgnn.federation.task_client import run_task

    watcher = sites_watcher()
    try:
        return run_task(kit, task, watcher)
    finally:
        watcher.end()


def _print_training(kit: Path, run: str, result: Mapping[str, Any]) -> None:
    from cnfgnn.federation.server_task import RUNS

    title = f"{result['method']}, best round {result['best_round']} of {result['rounds']}, test"
    progress.out().print(progress.errors_table(result["scores"], title, _step_minutes(kit, run)))
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
    print(f"run: {kit / RUNS / run}\nnext: cnfgnn federation forecast {kit} {run}")


def _print_about_errors(result: Mapping[str, Any]) -> None:
    """Say what the errors of a table are about."""
    true_ones = "each site has its true errors in evaluations/ of its kit"
    if result["errors_against"] == "copies":
        print(f"these are errors against the blurred copies of the readings; {true_ones}")
    elif result["without_personal_weights"]:
        print(f"these are errors of forecasts without the sensors' personal weights; {true_ones}")
    for site, errors in result["told"].items():
        shown = f"RMSE {progress.number(errors['rmse'])}, MAE {progress.number(errors['mae'])}"
        print(f"true errors that site {site} tells: {shown}")


def _print_absent_sites(result: Mapping[str, Any]) -> None:
    if result["absent"]:
        print(f"without the sensors of sites {', '.join(result['absent'])}, which were absent")


def _print_recording(kit: Path, run: str, result: Mapping[str, Any]) -> None:
    """Say what a recording is."""
    from cnfgnn.federation.server_task import RUNS

    if "recording" in result:
        folder = kit / RUNS / run
        print(
            f"{folder / result['recording']} keeps the hidden states that the sites sent, from which whoever"
            " has this file can estimate their blurred copies, or their readings where nothing is blurred:"
            f" delete it after cnfgnn attack {folder} DATA",
            file=sys.stderr,
            flush=True,
        )


def _to_go_on(
    kit: Path,
    earlier: str,
    name: str | None,
    method: str | None,
    config: Path | None,
    changes: list[str] | None,
    seed: int | None,
) -> tuple[str, dict[str, Any]]:
    """The name of a run that goes on from an earlier one, and what it changes of its settings; a mistake is
    found here, before any site is asked."""
    from cnfgnn.federation.server_task import RUNS
    from cnfgnn.runs.folder import Run
    from cnfgnn.runs.warm_start import check_same_architecture

    before = Run.open(kit / RUNS / earlier).config
    wanted = changes_to_go_on(before, None, method, config, changes or [], seed, None)
    check_same_architecture(before, wanted)
    return name or _new_name(before), wanted


def _new_name(settings: Config) -> str:
    return f"{settings.method}-seed{settings.seed}-{time.strftime('%Y%m%d-%H%M%S')}"


def _step_minutes(kit: Path, run: str) -> float:
    from cnfgnn.federation.server_task import RUNS
    from cnfgnn.runs.folder import Run

    return float(Run.open(kit / RUNS / run).data.step_seconds) / 60
