"""The commands of a live service: serve a run, show it on the synthetic city, and play recorded readings."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from cnfgnn.cli import progress
from cnfgnn.cli.settings import READING_KEYS, ReadingOption, reading_changes
from cnfgnn.errors import ConfigError
from cnfgnn.files import check_can_be_written
from cnfgnn.live.options import FEED, LATEST, LIVE, LIVE_OPTIONS, PORT, LiveSettings

if TYPE_CHECKING:
    import numpy as np

    from cnfgnn.live.start import LiveProcess

NEEDED = {
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "paho": "paho-mqtt",
    "prometheus_client": "prometheus-client",
}


class RunsByDefault(TyperGroup):
    """A group whose command `run` may be left out: `cnfgnn live RUN` is `cnfgnn live run RUN`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help",):
            args = ["run", *args]
        elif args and (Path(args[0]) / "manifest.json").exists():
            name = args[0]
            said = f"`{name}` is a command here; to serve the run folder {name}, write cnfgnn live ./{name}"
            print(said, file=sys.stderr)
        return super().parse_args(ctx, args)


live_app = typer.Typer(
    cls=RunsByDefault,
    no_args_is_help=True,
    help="Serve a run: forecasts the moment readings arrive. `cnfgnn live RUN` is short for `live run RUN`.",
)


def _option(name: str, **more: Any) -> Any:
    """A setting of the service as an option."""
    declared = LIVE_OPTIONS[name]
    if declared.kind is int:
        more |= {"min": declared.at_least, "max": declared.at_most}
    return typer.Option(help=declared.help, **more)


RunArgument = Annotated[Path, typer.Argument(help="A run folder.")]
DataOption = Annotated[Path | None, _option("data")]
StateOption = Annotated[Path | None, _option("state")]
DeadlineOption = Annotated[float | None, _option("deadline")]
ClockOption = Annotated[str, _option("clock")]
TimezoneOption = Annotated[str, _option("timezone")]
PortOption = Annotated[int, _option("port")]
MqttOption = Annotated[str, _option("mqtt")]
HoldOutOption = Annotated[float, _option("hold_out")]


@live_app.command()
def run(
    run: RunArgument,
    data: DataOption = None,
    changes: ReadingOption = None,
    state: StateOption = None,
    latest: Annotated[Path | None, _option("latest")] = None,
    deadline: DeadlineOption = None,
    clock: ClockOption = LiveSettings.clock,
    speed: Annotated[float, _option("speed")] = LiveSettings.speed,
    timezone: TimezoneOption = LiveSettings.timezone,
    host: Annotated[str, _option("host")] = LiveSettings.host,
    port: PortOption = LiveSettings.port,
    token_file: Annotated[str, _option("token_file")] = LiveSettings.token_file,
    mqtt: MqttOption = LiveSettings.mqtt,
    mqtt_readings: Annotated[str, _option("mqtt_readings")] = LiveSettings.mqtt_readings,
    mqtt_forecasts: Annotated[str, _option("mqtt_forecasts")] = LiveSettings.mqtt_forecasts,
    poll: Annotated[float, _option("poll", min=0.05)] = LiveSettings.poll,
    retrain: Annotated[str, _option("retrain")] = "",
    retrain_threads: Annotated[int, _option("retrain_threads")] = LiveSettings.retrain_threads,
    retrain_nice: Annotated[int, _option("retrain_nice")] = LiveSettings.retrain_nice,
    hold_out: HoldOutOption = LiveSettings.hold_out,
) -> None:
    """Serve forecasts as readings arrive.

    Readings come from the folder's file as it grows, from new files beside it, by HTTP POST /readings and by
    MQTT. Forecasts are at GET /forecasts, in the stream GET /events, at the MQTT broker, in latest.csv, and
    on the page at /. docs/live.md says what happens to readings that are late, repeated, wrong or missing.
    With --retrain, a process beside the service trains the model again, and the new one goes live if it is
    better on the last days.
    """
    # The options have the names of the settings.
    chosen: dict[str, Any] = {name: value for name, value in locals().items() if name != "run"}
    check_installed()
    if latest is not None:
        check_can_be_written(latest)
    from cnfgnn.live.start import run_live
    from cnfgnn.runs.folder import Run

    settings = LiveSettings(**chosen | {"changes": reading_changes(changes), "retrain": _period(retrain)})
    settings.check()
    _log_to_stderr()
    run_live(Run.open(run), settings, say_where)


@live_app.command("retrain")
def retrain_once(
    run: RunArgument,
    data: DataOption = None,
    changes: ReadingOption = None,
    state: StateOption = None,
    clock: ClockOption = LiveSettings.clock,
    timezone: TimezoneOption = LiveSettings.timezone,
    hold_out: HoldOutOption = LiveSettings.hold_out,
) -> None:
    """Train once on the readings of the service, and go live if the new model is better.

    This is what --retrain does again and again. Training starts from the live model, without the last days
    (--hold-out), on which both models are compared. A running service follows within a second.
    """
    check_installed()
    from cnfgnn.live.learning.models import Models
    from cnfgnn.live.learning.retrain import retrain
    from cnfgnn.runs.folder import Run

    chosen: dict[str, Any] = {"clock": clock, "timezone": timezone, "hold_out": hold_out}
    settings = LiveSettings(data=data, changes=reading_changes(changes), **chosen)
    models = Models(run, state or run / LIVE)
    done = retrain(Run.open(run), models, settings, progress.watcher())
    print(f"{done.outcome}: {done.text}")


@live_app.command()
def rollback(run: RunArgument, state: StateOption = None) -> None:
    """Go back to the model that was live before the present one; a service that runs follows in a second."""
    from cnfgnn.live.learning.models import Models
    from cnfgnn.runs.folder import Run

    Run.open(run)
    switch = Models(run, state or run / LIVE).rollback("rollback").switches[-1]
    print(f"{switch.after} is live instead of {switch.before}")


@live_app.command()
def reset(
    run: RunArgument,
    state: StateOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
) -> None:
    """Forget the readings of a service and what it learned from them; refused while it runs.

    The next start reads the files of readings again. Readings that came by HTTP or MQTT alone are lost. The
    token and the models stay.
    """
    from cnfgnn.live.intake.at_hand import BEGUN
    from cnfgnn.live.intake.store import FILE, remove_database
    from cnfgnn.runs.folder import Run

    Run.open(run)
    folder = state or run / LIVE
    database = folder / FILE
    if not database.exists():
        print(f"nothing to remove: there is no {database}")
        return
    told = f"{database}: the service's readings, and what ranges and the watch have learned"
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("--yes", f"is needed without a terminal, because this removes {told}")
        typer.confirm(f"remove {told}?", abort=True)
    remove_database(folder, LATEST, BEGUN)
    print(f"removed {told}")


@live_app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the run and its data.")] = Path("runs/live-demo"),
    speed: Annotated[float, typer.Option(help="How fast the recorded day is played.")] = 600.0,
    steps: Annotated[int, typer.Option(min=1, max=288, help="How many steps of it are played.")] = 288,
    port: PortOption = PORT,
    mqtt: MqttOption = "",
    once: Annotated[bool, typer.Option("--once", help="End when the recorded day is over.")] = False,
) -> None:
    """Show a live service on the synthetic city: train a small run, and play a day to it, at speed.

    A run that is already in the folder is used again. Without --once the service goes on until Ctrl-C.
    """
    check_installed()
    from cnfgnn.live import demo as live_demo
    from cnfgnn.live.intake.store import remove_database

    state = out / LIVE
    settings = LiveSettings(state=state, clock=FEED, speed=speed, port=port, mqtt=mqtt)
    settings.check()  # before a run is trained
    made = live_demo.prepare(out, progress.watcher())
    settings = replace(settings, data=made.folder)
    remove_database(state)  # the same day is played again
    _log_to_stderr()
    live_demo.show(made, settings, once, steps, say_where, partial(print, flush=True))
    if not once:
        raise KeyboardInterrupt


def replay(
    data: Annotated[Path, typer.Argument(help="A folder or file of recorded readings.")],
    to: Annotated[str, typer.Option(help="The service: http://HOST:PORT.")] = "http://127.0.0.1:8707",
    speed: Annotated[float, typer.Option(help="How fast: 300 plays five minutes in a second.")] = 1.0,
    since: Annotated[str | None, typer.Option("--from", help="The time to begin at.")] = None,
    until: Annotated[str | None, typer.Option(help="The time to end before.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="The file with the service's token.")] = None,
    changes: ReadingOption = None,
) -> None:
    """Play recorded readings to a live service, as if they were measured now.

    Times are sent as they were recorded, so the service should run with --clock feed and the same --speed.
    Other variables of the folder are played as well (--set data.inputs=none leaves them out). Covariates are
    not: the service reads them from its own files.
    """
    from cnfgnn.config.settings import Config
    from cnfgnn.data.files.folder import load_readings
    from cnfgnn.data.inputs import InputNames
    from cnfgnn.data.options import ReadingOptions
    from cnfgnn.live.intake.replay import Player
    from cnfgnn.live.intake.replay import replay as play
    from cnfgnn.live.web.token_file import read_token

    LiveSettings(clock=FEED, speed=speed).check()
    d = Config().with_changes(reading_changes(changes, (*READING_KEYS, "data.target", "data.inputs"))).data
    readings = load_readings(data, ReadingOptions(d.dates, d.decimal, d.timezone, d.target, d.inputs))
    if covariates := InputNames.of(readings.others).covariates:
        names = ", ".join(covariates)
        print(f"not played: {names}; the service reads covariates from its own files", file=sys.stderr)
    sent, stored, token = 0, 0, "" if token_file is None else read_token(token_file)
    with closing(Player(to, token)) as player, _row_by_row() as told:
        for played in play(readings, player, speed, _moment("--from", since), _moment("--until", until)):
            sent, stored = sent + played.readings, stored + played.stored
            told(f"{played.time}: {played.stored} of {played.readings} readings stored")
    if player.unused:
        print(f"the service does not use: {', '.join(sorted(player.unused))}", file=sys.stderr)
    print(f"{sent} readings were sent, {stored} were new")


@contextmanager
def _row_by_row() -> Iterator[Callable[[str], None]]:
    """Show the row that was played last: in one line of a terminal, elsewhere a line every half minute."""
    if sys.stderr.isatty():
        with Console(stderr=True).status("") as status:
            yield status.update
        return
    shown_at = -progress.HEARTBEAT_S

    def say(line: str) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at > progress.HEARTBEAT_S:
            shown_at = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    yield say


def check_installed() -> None:
    """Say in one sentence what to install if the extra is missing."""
    if missing := [package for module, package in NEEDED.items() if _is_missing(module)]:
        problem = f"needs packages that are not installed ({', '.join(missing)})"
        raise ConfigError("cnfgnn live", f"{problem}: pip install 'cnfgnn[live]'")


def _is_missing(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:  # of a package that it is in
        return True


def page_link(address: str, token_file: Path) -> str:
    """The address of a page for whoever reads it: with the token on a terminal, without it in a log."""
    from urllib.parse import quote

    from cnfgnn.live.web.token_file import read_token

    if sys.stdout.isatty():
        with suppress(ConfigError):  # it cannot be read
            return f"{address}/#token={quote(read_token(token_file), safe='')}"
    return f"{address}/ (its token is in {token_file})"


def say_where(process: LiveProcess) -> None:
    """Print where the service is, and how to talk to it."""
    service = process.service
    print(
        f"live on {process.address}, {len(service.recent.ids)} sensors, a step every {service.recent.step} s"
    )
    print(f"page: {page_link(process.address, process.token_file)}")
    print(
        f"forecasts: {process.address}/forecasts, /events and {service.latest_file}; state: /health, /metrics"
    )
    if process.broker is not None:
        from cnfgnn.live.web.broker import topic_of

        broker = process.broker
        print(f"broker: readings from {broker.readings}, forecasts to {topic_of(broker.forecasts, 'SENSOR')}")
    sys.stdout.flush()


def _period(text: str) -> float | None:
    from cnfgnn.live.learning.live_model import period_of

    return period_of(text) if text else None


def _moment(option: str, text: str | None) -> np.datetime64 | None:
    import numpy as np

    from cnfgnn.live.intake.clock import Zone

    if text is None:
        return None
    try:
        return np.datetime64(int(Zone(True).read(text)), "s")
    except (ValueError, OverflowError):
        raise ConfigError(option, f"must be a time like 2024-01-31T08:05, not {text!r}") from None


def _log_to_stderr() -> None:
    from cnfgnn.repeated_lines import RepeatedLines

    handler = logging.StreamHandler()
    handler.addFilter(RepeatedLines())
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", handlers=[handler])
