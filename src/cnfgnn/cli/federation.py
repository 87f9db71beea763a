"""The commands of `cnfgnn federation`, which are in the modules beside this one, and its demo."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from cnfgnn.cli import progress
from cnfgnn.cli.federation_kits import check, clean, down, engine, init, renew, request, revoke, sign, up
from cnfgnn.cli.federation_live import live, rollback
from cnfgnn.cli.federation_owner import approve, backup, restore, sent
from cnfgnn.cli.federation_status import status
from cnfgnn.cli.federation_tasks import evaluate, forecast, train
from cnfgnn.errors import ConfigError

federation_app = typer.Typer(
    no_args_is_help=True,
    help="Train with sites that keep their readings: make kits, start them, train, evaluate, forecast.",
)


@federation_app.callback()
def require_engine() -> None:
    if importlib.util.find_spec("nvflare") is None:
        raise ConfigError("federation", "NVIDIA FLARE is not installed: pip install 'cnfgnn[federation]'")


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


for command in (
    init,
    up,
    engine,
    down,
    status,
    request,
    sign,
    renew,
    revoke,
    clean,
    check,
    sent,
    approve,
    backup,
    restore,
    train,
    evaluate,
    forecast,
    live,
    rollback,
    demo,
):
    federation_app.command()(command)
