"""The commands of a live federation: `cnfgnn federation live` and `rollback`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cnfgnn.cli.federation_arguments import RunName, ServerArgument, WaitOption
from cnfgnn.cli.live import DeadlineOption, check_installed, page_link

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cnfgnn.federation.task import Task

RetrainOption = Annotated[
    str,
    typer.Option(help="How often to retrain: hourly, daily, weekly, 6h, 2d ...; a better model goes live."),
]
HoldOutOption = Annotated[
    float,
    typer.Option(
        "--hold-out",
        help="With --retrain: the last days, kept from training, on which the models are compared.",
    ),
]


TokenOption = Annotated[
    str,
    typer.Option("--token-file", help="A file with the token of the page; default page-token in KIT."),
]


def live(
    kit: ServerArgument,
    run: RunName,
    deadline: DeadlineOption = None,
    clock: Annotated[
        str,
        typer.Option(
            help="system: the sites' clocks; feed: recordings. Each site sets live.clock to the same."
        ),
    ] = "system",
    speed: Annotated[float, typer.Option(help="With --clock feed: how fast time passes.")] = 1.0,
    host: Annotated[
        str, typer.Option(help="Address of the page; 0.0.0.0 lets other machines ask.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the page; 0 chooses a free one.")
    ] = 8708,
    token_file: TokenOption = "",
    wait: WaitOption = 60.0,
    retrain: RetrainOption = "",
    hold_out: HoldOutOption = 3.0,
) -> None:
    """Forecast at every step: each site serves the forecasts of its own sensors, until Ctrl-C.

    Each site takes in readings and serves forecasts as `cnfgnn live` does, where its local/site.toml says
    (`live.port`). No reading and no forecast reaches the server. The page of this command shows which sites
    take part, how fast they answer and how many of their sensors have a reading. If the server dies, the
    sites go on by themselves, and the task is started again. With --retrain, a second task trains from the
    live model on; the new model goes live if it is better on the blurred copies of the last days.
    """
    check_installed()
    from cnfgnn.federation.operator.live.page import LivePage
    from cnfgnn.federation.operator.live.retraining import RetrainPlan, retraining
    from cnfgnn.federation.operator.tasks import check_server_kit
    from cnfgnn.federation.task import Task
    from cnfgnn.live.learning.live_model import period_of
    from cnfgnn.live.options import LiveSettings

    check_server_kit(kit)
    plan = RetrainPlan(kit, run, period_of(retrain), hold_out, wait) if retrain else None
    settings = LiveSettings(deadline=deadline, clock=clock, speed=speed, hold_out=hold_out)
    settings.check()
    terms = {"deadline": deadline, "feed": settings.feed, "speed": speed}
    page = LivePage(kit, host, port, token_file, None if plan is None else plan.period)
    try:
        with page, retraining(plan, terms, _say):
            link = page_link(page.address, page.token_file)
            print(f"the page of this federation: {link}", flush=True)
            stopped = _follow_live(kit, Task("live", run, wait=wait, live=terms))
    except KeyboardInterrupt:
        stopped = {}
    _say(how_services_ended(stopped))
    raise typer.Exit(130)


def how_services_ended(stopped: Mapping[str, Any]) -> str:
    """What is known of the sites' services after Ctrl-C; `stopped` is the status of the task if it was there
    to be stopped."""
    ended, sites = stopped.get("services_ended") or [], stopped.get("sites") or {}
    go_on = "a service that runs goes on by itself: cnfgnn federation down at its site ends it"
    if not stopped:
        return f"stopped; the server's task was not there to end the sites' services: {go_on}"
    known = f"sites {', '.join(ended)} have ended their services" if ended else "no site was there"
    if left := [name for name in sites if name not in ended]:
        return f"stopped; {known}, and {', '.join(left)} could not be told: {go_on}"
    return f"stopped; {known}"


def _follow_live(kit: Path, task: Task) -> Mapping[str, Any]:
    """Keep a live task running, and show its status together with its model and the training beside it, until
    Ctrl-C; returns the status of the task that was stopped."""
    from cnfgnn.cli.sites import sites_watcher
    from cnfgnn.federation.operator.live.state import live_state
    from cnfgnn.federation.operator.tasks import keep_live
    from cnfgnn.federation.server.status import when_old

    watcher = sites_watcher()

    def show(status: Mapping[str, Any]) -> None:
        watcher({**when_old(kit, status), "federation": live_state(kit)})

    try:
        return keep_live(kit, task, show, watcher.say)
    finally:
        watcher.end()


def rollback(kit: ServerArgument, run: RunName) -> None:
    """Go back to the model that was live before, in a federation that went live with RUN.

    A live task follows within a second, and all its sites with it.
    """
    from cnfgnn.federation.operator.tasks import check_server_kit
    from cnfgnn.federation.server.live.models import FederatedModels
    from cnfgnn.federation.task import RUNS
    from cnfgnn.runs.folder import Run

    check_server_kit(kit)
    Run.open(kit / RUNS / run)
    switch = FederatedModels(kit, run).rollback("rollback").switches[-1]
    print(f"{switch.after} is live instead of {switch.before}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
