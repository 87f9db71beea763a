"""The command line's part for federations: kits, processes, tasks over sites that keep their readings."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cnfgnn import terminal
from cnfgnn.cli_settings import (
    ChangesOption,
    ConfigOption,
    LikeOption,
    MethodOption,
    SeedOption,
    SizeOption,
    resolve,
)
from cnfgnn.config import Config
from cnfgnn.data.windows import SPLITS
from cnfgnn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cnfgnn.federation.serving import Task

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
) -> None:
    """Make a kit for the server and for each site: certificates, settings, and how to start."""
    from cnfgnn.federation.kits import make_kits
    from cnfgnn.federation.project import read_project

    kits = make_kits(read_project(project), out, authority=authority)
    for name, kit in kits.items():
        print(f"{name}: {kit}")
    print(f"authority: {out.absolute() / 'authority'} (keep it: it can make further kits)")
    print("next: hand each site its folder, set `readings` in its local/site.toml, then on each machine:")
    print("  cnfgnn federation check KIT   (at a site)\n  cnfgnn federation up KIT")


@federation_app.command()
def up(kit: KitArgument = Path()) -> None:
    """Start the server or the site of a kit; it goes on in the background."""
    from cnfgnn.federation.kits import kind
    from cnfgnn.federation.processes import running
    from cnfgnn.federation.processes import up as start

    already = running(kit) is not None
    pid = start(kit)
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
    """Say whether a kit's process runs; at the server also which sites are there and how its task goes."""
    from cnfgnn.federation.kits import kind, read_site
    from cnfgnn.federation.processes import jobs_of, running

    pid, what = running(kit), kind(kit)
    said: dict[str, Any] = {"kind": what, "pid": pid}
    if what == "site":
        said |= {"site": read_site(kit).name, "task": bool(pid and jobs_of(kit))}
    else:
        said |= _server_status(kit, pid is not None)
    if as_json:
        print(json.dumps(said))
        return
    name = f"site {said['site']}" if what == "site" else "server"
    at_work = ", at work on a task" if said.get("task") and what == "site" else ""
    print(f"{name}: {'process ' + str(pid) if pid else 'does not run'}{at_work}")
    if what == "server":
        _print_server(said)


def _server_status(kit: Path, is_up: bool) -> dict[str, Any]:
    from cnfgnn.federation.operating import OVER, at_work, connected_sites, plan_of
    from cnfgnn.federation.status import read_status

    last = read_status(kit)
    said: dict[str, Any] = {"sites": plan_of(kit), "task": last}
    said["connected"] = connected_sites(kit) if is_up else {}
    if last is not None and last.get("state") not in OVER and not (is_up and at_work(last)):
        said["task"] = {**last, "state": "interrupted"}
    return said


def _print_server(said: Mapping[str, Any]) -> None:
    from cnfgnn.terminal_sites import headline, sites_table

    now = time.time()
    for name, sensors in said["sites"].items():
        seen = said["connected"].get(name)
        heard = "not connected" if seen is None else f"connected, heard of {max(0.0, now - seen):.0f} s ago"
        print(f"  {name}: {sensors} sensor{'s' if sensors != 1 else ''}, {heard}")
    if said["task"] is not None:
        print(headline(said["task"]))
        if said["task"].get("sites"):
            terminal.out().print(sites_table(said["task"]))


@federation_app.command()
def check(kit: KitArgument = Path()) -> None:
    """At a site, before it joins: do its readings fit, is the clock right, can the server be reached?"""
    from cnfgnn.federation.checking import check_site

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
    from cnfgnn.federation.serving import RUNS, Task, check_federated, settings_of

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
        print(f"\nstopped: cnfgnn federation train {kit} --resume {task.run}")
        raise typer.Exit(130) from None
    title = f"{result['method']}, best round {result['best_round']} of {result['rounds']}, test"
    terminal.out().print(terminal.errors_table(result["scores"], title, _step_minutes(kit, task.run)))
    _say_who_was_away(result)
    moved = result["bytes"]
    print(f"training moved {terminal.size(moved['per_site'])} until then, counted per site")
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
    from cnfgnn.federation.serving import Task

    if split not in SPLITS:
        raise ConfigError("--split", f"there is no split {split!r}", SPLITS)
    result = _performed(kit, Task("evaluate", run, split=split, wait=wait))
    scores = result["scores"]
    if as_json:
        print(json.dumps(scores))
        return
    terminal.out().print(terminal.errors_table(scores, f"{run}, {split}", _step_minutes(kit, run)))
    _say_who_was_away(result)


@federation_app.command()
def forecast(kit: ServerArgument, run: RunName, wait: WaitOption = 60.0) -> None:
    """Have every site forecast its sensors, each into forecasts/ of its own kit; nothing comes back."""
    from cnfgnn.federation.serving import Task

    result = _performed(kit, Task("forecast", run, wait=wait))
    print(f"forecasts from {result['from']} to {result['to']} are at {', '.join(result['sites'])}")
    print("each has its own: forecasts/latest.csv in its kit")


@federation_app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where kits and runs go; it must not exist.")] = Path(
        "runs/federation-demo"
    ),
    rounds: Annotated[int, typer.Option(help="Of training.")] = 4,
) -> None:
    """All of it on this machine: four sites as processes of their own, one killed and back, and the result
    beside the simulator's."""
    from cnfgnn.federation.demo import demonstrate
    from cnfgnn.terminal_sites import sites_watcher

    watcher = sites_watcher()
    try:
        compared = demonstrate(folder, rounds, watcher, print)
    finally:
        watcher.end()
    terminal.out().print(terminal.rows_table("test error of", compared))
    print(f"everything is in {folder}: kits, readings of each site, the run, forecasts")


def _performed(kit: Path, task: Task) -> Mapping[str, Any]:
    from cnfgnn.federation.operating import perform
    from cnfgnn.terminal_sites import sites_watcher

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
    from cnfgnn.federation.serving import RUNS
    from cnfgnn.runs import Run

    return float(Run.open(kit / RUNS / run).data["step_seconds"]) / 60
