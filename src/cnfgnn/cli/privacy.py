"""The command that says what a blur guarantees, and what a smoother would make of an owner's copies."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cnfgnn.cli import progress
from cnfgnn.cli.settings import ChangesOption
from cnfgnn.config import toml
from cnfgnn.config.settings import Config
from cnfgnn.errors import ConfigError, DataError, RunError

if TYPE_CHECKING:
    from cnfgnn.attack.smoothed_copies import Smoothed, SmoothedCopies
    from cnfgnn.data.readings import Readings
    from cnfgnn.privacy.explanation import Guarantee
    from cnfgnn.runs.folder import Run

TIME = re.compile(r"(\d+(?:\.\d+)?) *(s|min|h|d|days?|weeks?)", re.A)
SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "day": 86400, "days": 86400} | dict.fromkeys(
    ("week", "weeks"), 7 * 86400
)
MOST_READINGS = 10**9  # more in one event can only be a mistake
StepOption = Annotated[
    str | None,
    typer.Option(help="Without a run: the time between two readings, such as 5min, to show times."),
]
DurationsOption = Annotated[
    str | None,
    typer.Option(
        help="How long changes last: readings (1,3,12), or times (15min,1h,1d) if the step is known."
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(help="Your readings: compute, on this machine, how near a smoother of their copies comes."),
]
HideOption = Annotated[
    float | None,
    typer.Option(
        help="Name the blur at which a smoother still misses the readings by this much, in their unit."
    ),
]


def privacy(
    run: Annotated[
        Path | None, typer.Argument(help="A run folder: its blur and the time between its readings are used.")
    ] = None,
    blur: Annotated[
        float | None, typer.Option(help="Without a run: the blur, in the unit of the readings.")
    ] = None,
    unit: Annotated[str, typer.Option(help="The unit of the readings, such as mph, to show it.")] = "",
    step: StepOption = None,
    changes: Annotated[
        str | None, typer.Option(help="Sizes of the changes to show, in the unit of the readings: 1,5,10,20")
    ] = None,
    durations: DurationsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    data: DataOption = None,
    hide: HideOption = None,
    settings: ChangesOption = None,
) -> None:
    """Say what a blur guarantees: which changes of the readings a server can tell, whatever it asks.

    The table has, for changes of several sizes and durations, the probability with which the best possible
    attacker is right, and the figures of differential privacy. It needs no readings. With --data, a second
    table says how near a smoother would come to your own readings; it is shown to you and kept nowhere.
    """
    from cnfgnn.privacy.explanation import Measures, explain
    from cnfgnn.privacy.explanation import as_json as all_as_json

    readings = _readings(data, hide, settings)
    blurs, seconds = _blurs_and_step(run, blur, step, readings)
    smoothing = None if readings is None else _smoothing(readings)
    measures = Measures(unit, seconds)
    guarantees = explain(blurs, measures, _changes(changes), _durations(durations, seconds))
    least = min(filter(None, blurs.values()), default=0.0)
    if as_json:
        told = all_as_json(guarantees, measures)
        if smoothing is not None:
            told["smoothing"] = _smoothing_as_json(smoothing, least, hide)
        print(json.dumps(told, allow_nan=False))
        return
    print_guarantees(guarantees)
    if smoothing is not None:
        _print_smoothing(smoothing, least, hide, unit)


def blurs_of(run: Run) -> dict[str, float]:
    """The blur of each site of a run, as far as it is known: a site that was away when the run began has told
    none. A run of the simulator has one blur, under the name ""."""
    if run.data.federation is None:
        return {"": run.config.privacy.blur}
    if not run.started:
        raise RunError(run.folder, "has not begun yet, so that no site has told its blur")
    with run.reading_events():
        recorded = run.events()[0]["data"]["blur"]
        return {site: float(blur) for site, blur in recorded.items() if blur is not None}


# ---- what was asked for ---------------------------------------------------------------------------------


def _blurs_and_step(
    folder: Path | None, blur: float | None, step: str | None, readings: Readings | None
) -> tuple[dict[str, float], float | None]:
    """The blur of each site and the seconds between two readings, from a run, from options or readings."""
    if folder is None:
        seconds = None if step is None else _seconds("--step", step)
        if readings is not None and step is None:
            seconds = float(readings.step_seconds)
        if blur is not None:
            return {"": _checked(blur)}, seconds
        if readings is None:
            raise ConfigError("--blur", "give the blur in the unit of your readings, or a run folder")
        return {}, seconds
    for option, value in (("--blur", blur), ("--step", step)):
        if value is not None:
            raise ConfigError(option, "a run has its own: leave out this option, or the run")
    from cnfgnn.runs.folder import Run

    run = Run.open(folder)
    blurs = blurs_of(run)
    for site in [] if run.data.federation is None else run.data.federation.sites:
        if site not in blurs:
            print(f"{site} was away when the run began, so that its blur is not known here", file=sys.stderr)
    if not blurs:
        raise RunError(folder, "no site has told its blur")
    return blurs, float(run.data.step_seconds)


def _readings(path: Path | None, hide: float | None, settings: list[str] | None) -> Readings | None:
    """An owner's readings as a run would use them; None if there is nothing to compute from them."""
    from cnfgnn.data.files.folder import load_readings
    from cnfgnn.data.options import ReadingOptions
    from cnfgnn.data.quality import clean

    if path is None:
        for option, value in (("--hide", hide), ("--set", settings)):
            if value:
                raise ConfigError(option, "needs your readings: add --data with their file or folder")
        return None
    check_hide(hide)
    d = Config().with_changes(dict(toml.parse_change(text) for text in settings or [])).data
    return clean(load_readings(path, ReadingOptions(d.dates, d.decimal, d.timezone, d.target, d.inputs)), d)


def check_hide(hide: float | None) -> None:
    """Refuse an error that no estimate can have."""
    if hide is not None and not 0 < hide < math.inf:
        raise ConfigError("--hide", f"must be above 0, not {hide}")


def _smoothing(readings: Readings) -> SmoothedCopies:
    from cnfgnn.attack.smoothed_copies import TOO_FEW, SmoothedCopies

    found = SmoothedCopies.of(readings.values, readings.missing)
    if found is None:
        raise DataError(readings.source, TOO_FEW)
    return found


def _checked(blur: float) -> float:
    from cnfgnn.privacy.noise import LEAST_SIGMA

    if blur != 0 and not LEAST_SIGMA <= blur < math.inf:
        raise ConfigError("--blur", f"must be 0 or at least {LEAST_SIGMA}, not {blur}")
    return blur


def _changes(text: str | None) -> list[float]:
    """The sizes of changes, smallest first."""
    sizes = []
    for part in _parts(text):
        try:
            size = float(part)
        except ValueError:
            size = math.nan
        if not 0 < size < math.inf:
            raise ConfigError("--changes", f"{part!r} is not a size above 0: give sizes like 1,5,10,20")
        sizes.append(size)
    return sorted(set(sizes))


def _durations(text: str | None, step: float | None) -> list[int]:
    """The numbers of readings that changes last, smallest first; a part of a step counts as a reading."""
    lengths = []
    for part in _parts(text):
        if re.fullmatch(r"\d+", part, re.A):
            readings = int(part)
        elif step is None:
            problem = f"{part!r} is not a number of readings; times like 1h also need --step"
            raise ConfigError("--durations", problem)
        else:
            readings = math.ceil(_seconds("--durations", part) / step - 1e-9)
        if not 1 <= readings <= MOST_READINGS:
            raise ConfigError("--durations", f"{part!r} is not between 1 and {MOST_READINGS:,} readings")
        lengths.append(readings)
    return sorted(set(lengths))


def _parts(text: str | None) -> list[str]:
    return [] if text is None else [part.strip() for part in text.split(",")]


def _seconds(option: str, text: str) -> float:
    """The seconds of a text such as 5min."""
    match = TIME.fullmatch(text.strip())
    seconds = float(match[1]) * SECONDS[match[2]] if match else 0.0
    if not 0 < seconds < math.inf:
        raise ConfigError(option, f"{text!r} is not a time such as 30s, 5min, 1h, 1d or 1week")
    return seconds


# ---- what is printed ------------------------------------------------------------------------------------


def print_guarantees(guarantees: Sequence[Guarantee], with_caveats: bool = True) -> None:
    from cnfgnn.privacy.explanation import MU_AND_EPSILON, RIGHT_AT_MOST, caveats

    console = progress.out()

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    for guarantee in guarantees:
        if guarantee.sites:
            say(f"{', '.join(guarantee.sites)}:")
        say(f"{guarantee.sentence} {guarantee.about_the_noise}")
        if guarantee.rows:
            console.print(_table(guarantee))
    if any(guarantee.rows for guarantee in guarantees):
        say(RIGHT_AT_MOST)
        say(MU_AND_EPSILON)
    if with_caveats and (told := caveats(guarantees)):
        say("\nKeep in mind:")
        for title, text in told.items():
            say(f"- {title}. {text}")


def _table(guarantee: Guarantee) -> Table:
    from cnfgnn.privacy.explanation import epsilon_text, mu_text, share

    measures = guarantee.measures
    in_time = measures.step is not None
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("change", "lasts") if in_time else ("change",):
        table.add_column(heading, justify="right", overflow="fold")  # rather two lines than a cut figure
    for heading in ("readings", "right\nat most", "mu", "epsilon"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("the event is", overflow="fold")
    for row in guarantee.rows:
        cells = [measures.amount(row.change), *([measures.lasting(row.readings)] if in_time else [])]
        cells += [f"{row.readings:,}", share(row.detection), mu_text(row.mu), epsilon_text(row.epsilon)]
        table.add_row(*map(Text, (*cells, row.verdict)))
        if row.readings == guarantee.durations[-1]:
            table.add_section()
    return table


def _print_smoothing(smoothing: SmoothedCopies, blur: float, hide: float | None, unit: str) -> None:
    from cnfgnn.attack.smoothed_copies import ABOUT

    console = progress.out()

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    say("By how much a smoother of your copies would miss your readings (RMSE):")
    console.print(_smoothing_table(smoothing.for_blurs(blur), unit))
    say(f"Guessing each sensor's mean misses by {smoothing.guess:.3g} {unit}".rstrip() + f". {ABOUT}")
    if hide is not None:
        say(smoothing.hiding(hide, unit))


def _smoothing_table(rows: Sequence[Smoothed], unit: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("blur", "each sensor\nby itself", "all sensors\ntogether"):
        table.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        cells = (f"{row.blur:g} {unit}".rstrip(), f"{row.alone:.3g}", f"{row.together:.3g}")
        table.add_row(*map(Text, cells))
    return table


def _smoothing_as_json(smoothing: SmoothedCopies, blur: float, hide: float | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "guess": smoothing.guess,
        "rows": [asdict(row) for row in smoothing.for_blurs(blur)],
    }
    return told if hide is None else told | {"hide": hide, "blur": smoothing.blur_that_hides(hide)}
