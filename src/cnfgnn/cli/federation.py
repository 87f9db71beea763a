"""The command line's part for federations: kits, processes, tasks over sites that keep their readings."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cnfgnn.cli import progress
from cnfgnn.cli.settings import (
    ChangesOption,
    ConfigOption,
    LikeOption,
    MethodOption,
    SeedOption,
    SizeOption,
    resolve,
)
from cnfgnn.config.settings import Config
from cnfgnn.errors import ConfigError, NodeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cnfgnn.federation.server_task import Task

federation_app = typer.Typer(
    no_args_is_help=True,
    help="Train with sites that keep their readings: provision, start, train, watch, forecast.",
)
KitArgument = Annotated[Path, typer.Argument(help="The kit's folder.")]
ServerArgument = Annotated[Path, typer.Argument(help="The server's kit.")]
RunName = Annotated[str, typer.Argument(help="The name of the run in the server's kit.")]
WaitOption = Annotated[float, typer.Option(help="Seconds to wait for sites that are not there yet.")]


@federation_app.callback()
def needs_the_engine() -> None:
    if importlib.util.find_spec("nvflare") is None:
        raise ConfigError("federation", "NVIDIA FLARE is not installed: pip install 'cnfgnn[federation]'")


@federation_app.command()
def init(
    project: Annotated[Path, typer.Argument(help="PROJECT.toml: server, sites, their sensors, the graph.")],
    out: Annotated[Path, typer.Option(help="The new folder of kits.")] = Path("kits"),
    authority: Annotated[
        Path | None, typer.Option(help="Of kits made earlier, to renew certificates or to add a site.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help="Make a kit for this site alone, e.g. after `revoke`; needs --authority."),
    ] = None,
) -> None:
    """Make a kit for the server and for each site: certificates, settings, and how to start."""
    from cnfgnn.federation.kits import make_kits
    from cnfgnn.federation.project import read_project

    kits = make_kits(read_project(project), out, authority=authority, only=only)
    for name, kit in kits.items():
        print(f"{name}: {kit}")
    if only is not None:
        print(f"next: at {only}, replace the folder `startup` of the old kit by the new one, then up")
        return
    print(f"authority: {out.absolute() / 'authority'} (keep it: it can make further kits)")
    print("next: hand each site its folder, set `readings` in its local/site.toml, then on each machine:")
    print("  cnfgnn federation check KIT   (at a site)\n  cnfgnn federation up KIT")


@federation_app.command()
def up(kit: KitArgument = Path()) -> None:
    """Start the server or the site of a kit; it goes on in the background."""
    from cnfgnn.federation.certificates import check_valid
    from cnfgnn.federation.kits import kind, note_program
    from cnfgnn.federation.processes import running, settle
    from cnfgnn.federation.processes import up as start

    already = running(kit) is not None
    pid = start(kit)
    note_program(kit)
    settle(kit, pid)
    for warning in check_valid(kit):
        print(f"warning: {warning}", file=sys.stderr)
    print(f"the {kind(kit)} {'runs already' if already else 'is up'}, process {pid}; log: {kit / 'log.txt'}")


@federation_app.command()
def down(kit: KitArgument = Path()) -> None:
    """Stop the server or the site of a kit, and every process it has."""
    from cnfgnn.federation.kits import kind
    from cnfgnn.federation.processes import down as stop

    print(f"the {kind(kit)} {'is stopped' if stop(kit) else 'was not running'}")


@federation_app.command()
def status(
    kit: KitArgument = Path(), as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Say how a kit stands: at the server its sites and its task, at a site whether the server hears it."""
    from cnfgnn.federation.kit_status import server_standing, site_standing
    from cnfgnn.federation.kits import kind
    from cnfgnn.federation.processes import running

    pid, what = running(kit), kind(kit)
    said: dict[str, Any] = {"kind": what, "pid": pid}
    said |= site_standing(kit, pid) if what == "site" else server_standing(kit, pid)
    if as_json:
        print(json.dumps(said))
        return
    name = f"site {said['site']}" if what == "site" else "server"
    at_work = ", at work on a task" if said.get("task") and what == "site" else ""
    print(f"{name}: {'process ' + str(pid) if pid else 'does not run'}{at_work}")
    if what == "server":
        _print_server(said)
    else:
        _print_site(said)
    for problem in said["problems"]:
        print(f"problem: {problem}")


def _print_site(said: Mapping[str, Any]) -> None:
    from cnfgnn.federation.kit_status import failure_lines
    from cnfgnn.federation.site_status import when

    if said["heard"] is not None:
        print(f"  the server at {said['server']} heard this site {said['heard']:.0f} s ago")
    else:
        print("  the server does not hear this site")
    if forecast := said["forecast"]:
        span = f"from {forecast['from']} to {forecast['to']}"
        print(f"  last forecast: {forecast['file']}, made {when(forecast['time'])}, {span}")
    else:
        print("  no forecast yet")
    for line in failure_lines(said["failed"]):
        print(f"  failed: {line}")


def _print_server(said: Mapping[str, Any]) -> None:
    from cnfgnn.cli.sites import headline, sites_table

    now = time.time()
    for name, sensors in said["sites"].items():
        seen = said["connected"].get(name)
        heard = "not connected" if seen is None else f"connected, heard of {max(0.0, now - seen):.0f} s ago"
        print(f"  {name}: {sensors} sensor{'s' if sensors != 1 else ''}, {heard}")
        for line in said["about"][name]:
            print(f"    {line}")
    if said["task"] is not None:
        print(headline(said["task"]))
        if said["task"].get("sites"):
            progress.out().print(sites_table(said["task"]))
        for line in said["task"].get("warnings") or []:
            print(f"warning: {line}")


@federation_app.command()
def revoke(
    kit: ServerArgument, site: Annotated[str, typer.Argument(help="The site whose kit was copied or stolen.")]
) -> None:
    """At the server: refuse the certificates that a site has had so far, and end its connections."""
    from cnfgnn.federation.certificates import revoke as refuse
    from cnfgnn.federation.flare.admission import read_server_status
    from cnfgnn.federation.task_client import check_server_kit

    check_server_kit(kit)
    seen = read_server_status(kit).get("sites", {}).get(site, {}).get("serials", [])
    new = refuse(kit, site, tuple(map(str, seen)))
    print(
        f"{site}: {len(new)} certificate{'s' if len(new) != 1 else ''} revoked; connections end in a second"
    )
    print(f"next: cnfgnn federation init PROJECT.toml --authority AUTHORITY --only {site} --out FOLDER")


@federation_app.command()
def clean(
    kit: KitArgument = Path(),
    keep: Annotated[
        int | None,
        typer.Option(min=0, help="How many of the latest finished tasks to keep; else `keep_tasks`."),
    ] = None,
) -> None:
    """Remove what finished tasks left in a kit: their logs and settings. Its process may be running."""
    from cnfgnn.federation.retention import tidy

    done = tidy(kit, keep)
    print(f"removed what {done.tasks} tasks left, {progress.size(done.bytes)}")


@federation_app.command()
def check(kit: KitArgument = Path()) -> None:
    """At a site, before it joins: do its readings fit, is the clock right, can the server be reached?"""
    from cnfgnn.federation.kits import kind, note_program
    from cnfgnn.federation.preflight import check_site

    kind(kit)
    note_program(kit)
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
    name: Annotated[str | None, typer.Option(help="The new run's name.")] = None,
    resume: Annotated[str | None, typer.Option(help="Go on with the run of this name.")] = None,
    wait: WaitOption = 60.0,
) -> None:
    """Train with every site that is there; the run folder is left in the server's kit, under runs/."""
    from cnfgnn.federation.server_task import RUNS, Task, check_federated, settings_of

    if resume is not None:
        given = {"--method": method, "--like": like, "--config": config, "--set": changes, "--seed": seed}
        for option, value in {**given, "--size": node_size, "--name": name}.items():
            if value is not None:
                raise ConfigError(option, "a resumed run keeps the settings it began with")
        task = Task("train", resume, resume=True, wait=wait)
    else:
        settings = resolve(None, method, node_size, like, config, changes or [], seed, None)
        check_federated(settings)
        chosen, given_keys = settings_of(settings), sorted(settings.given)
        task = Task("train", name or _new_name(settings), settings=chosen, given=given_keys, wait=wait)
    try:
        result = _performed(kit, task)
    except KeyboardInterrupt:
        from cnfgnn.federation.task_client import has_begun

        resume = f"cnfgnn federation train {kit} --resume {task.run}"
        print(f"\nstopped: {resume if has_begun(kit, task.run) else 'the run had not begun'}")
        raise typer.Exit(130) from None
    title = f"{result['method']}, best round {result['best_round']} of {result['rounds']}, test"
    progress.out().print(progress.errors_table(result["scores"], title, _step_minutes(kit, task.run)))
    _say_who_was_away(result)
    if result["left_out"]:
        left_out = ", ".join(result["left_out"])
        print(f"the best round was chosen without these sensors, which were away for some rounds: {left_out}")
    moved = result["bytes"]
    print(f"training moved {progress.size(moved['per_site'])} until then, counted per site")
    print(f"run {kit / RUNS / task.run}\nnext: cnfgnn federation forecast {kit} {task.run}")


@federation_app.command()
def evaluate(
    kit: ServerArgument,
    run: RunName,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    wait: WaitOption = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Judge a run's best round at the sites; summed errors come back, and nothing else."""
    from cnfgnn.data.windows import SPLITS
    from cnfgnn.federation.server_task import Task

    if split not in SPLITS:
        raise ConfigError("--split", f"there is no split {split!r}", SPLITS)
    result = _performed(kit, Task("evaluate", run, split=split, wait=wait))
    scores = result["scores"]
    if as_json:
        print(json.dumps(scores))
        return
    progress.out().print(progress.errors_table(scores, f"{run}, {split}", _step_minutes(kit, run)))
    _say_who_was_away(result)


@federation_app.command()
def forecast(kit: ServerArgument, run: RunName, wait: WaitOption = 60.0) -> None:
    """Have every site forecast its sensors, each into forecasts/ of its own kit; nothing comes back.

    Forecasts begin after the newest step that at least half of the sites have readings of. If a site has no
    forecast, the others still have theirs, and the command names it and ends with exit code 3.
    """
    from cnfgnn.federation.server_task import Task
    from cnfgnn.federation.task_client import TaskError

    result = _performed(kit, Task("forecast", run, wait=wait))
    if result["sites"]:
        print(f"forecasts from {result['from']} to {result['to']} are at {', '.join(result['sites'])}")
        print("each has its own: forecasts/latest.csv in its kit")
    if result["without"]:
        lacking = [f"site {name!r} has no forecast: {reason}" for name, reason in result["without"].items()]
        raise TaskError("; ".join(lacking), NodeError.exit_code)


@federation_app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where kits and runs go; it must not exist.")] = Path(
        "runs/federation-demo"
    ),
    rounds: Annotated[int, typer.Option(help="Of training.")] = 4,
) -> None:
    """All of it on this machine: four sites as processes of their own, one killed and back, and the result
    beside the simulator's."""
    from cnfgnn.cli.sites import sites_watcher
    from cnfgnn.federation.demo import demonstrate

    watcher = sites_watcher()
    try:
        compared = demonstrate(folder, rounds, watcher, print)
    finally:
        watcher.end()
    progress.out().print(progress.rows_table("test error of", compared))
    print(f"everything is in {folder}: kits, readings of each site, the run, forecasts")


def _performed(kit: Path, task: Task) -> Mapping[str, Any]:
    from cnfgnn.cli.sites import sites_watcher
    from cnfgnn.federation.task_client import perform

    watcher = sites_watcher()
    try:
        return perform(kit, task, watcher)
    finally:
        watcher.end()


def _say_who_was_away(result: Mapping[str, Any]) -> None:
    if result["away"]:
        print(f"without the sensors of {', '.join(result['away'])}: away when it was judged")


def _new_name(settings: Config) -> str:
    return f"{settings.method}-seed{settings.seed}-{time.strftime('%Y%m%d-%H%M%S')}"


def _step_minutes(kit: Path, run: str) -> float:
    from cnfgnn.federation.server_task import RUNS
    from cnfgnn.runs.folder import Run

    return float(Run.open(kit / RUNS / run).data.step_seconds) / 60
