"""Settings on the command line: the options that set them, and the commands that list them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from cnfgnn.algorithm.methods import ALIASES, LIKES, METHODS, Like, method_of, preset
from cnfgnn.cli import progress
from cnfgnn.config import toml
from cnfgnn.config.presets import DEFAULT_METHOD, DEFAULT_SIZE
from cnfgnn.config.settings import Config
from cnfgnn.errors import ConfigError

if TYPE_CHECKING:
    from cnfgnn.data.windows import Split

READING_KEYS = ("data.dates", "data.decimal", "data.timezone")
METHOD_HELP = "The method; `cnfgnn methods` lists them. The paper's is cnfgnn."
SIZE_HELP = "Size of a GRU baseline: 63k or 727k parameters."
LIKE_HELP = "Use the settings published for metr-la or pems-bay."
MethodOption = Annotated[str | None, typer.Option(help=METHOD_HELP)]
SizeOption = Annotated[str | None, typer.Option("--size", help=SIZE_HELP)]
LikeOption = Annotated[str | None, typer.Option(help=LIKE_HELP)]
ConfigOption = Annotated[Path | None, typer.Option(help="A TOML file of settings.")]
ChangesOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set one setting, as in --set training.rounds=3; can be repeated."),
]
ReadingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="How to read the files: data.dates=day-first, data.decimal=comma, data.timezone=Europe/Paris",
    ),
]
SplitOption = Annotated[str, typer.Option(help="train, validation or test.")]
IntervalsOption = Annotated[
    str,
    typer.Option(
        help="Add the bounds of intervals of these levels, in per cent, as in --intervals 80,95: 50, 80, 90,"
        " 95 and 99 are possible."
    ),
]
SeedOption = Annotated[
    int | None, typer.Option(help="Random seed of weights, minibatches and scheduled sampling.")
]


def check_split(name: str) -> Split:
    """The split that --split names."""
    from cnfgnn.data.windows import SPLITS

    for split in SPLITS:
        if split == name:
            return split
    raise ConfigError("--split", f"there is no split {name!r}", SPLITS)


def levels_of(intervals: str) -> tuple[int, ...]:
    """The levels of --intervals, ascending; none if it is empty."""
    if not intervals.strip():
        return ()
    from cnfgnn.forecasters.intervals import LEVELS, check_levels

    words = [word.strip().removesuffix("%").strip() for word in intervals.split(",") if word.strip()]
    unknown = [word for word in words if not word.isdecimal()]
    if unknown:
        problem = f"{unknown[0]!r} is not a level in per cent"
        raise ConfigError("--intervals", problem, [str(level) for level in LEVELS])
    return check_levels([int(word) for word in words], "--intervals")


def settings(
    method: Annotated[str, typer.Option(help=METHOD_HELP)] = DEFAULT_METHOD,
    node_size: Annotated[str, typer.Option("--size", help=SIZE_HELP)] = DEFAULT_SIZE,
    like: LikeOption = None,
    include_hidden: Annotated[
        bool, typer.Option("--all", help="Include the settings for studies of deviations from the paper.")
    ] = False,
) -> None:
    """Print the settings of a method, with an explanation of each, as a TOML file for --config."""
    print(toml.dump_explained(preset(method, node_size, like_of(like)), include_hidden), end="")


def methods() -> None:
    """List the methods: those of the paper's tables, and those beyond it."""
    table = Table("name", "in tables", "sizes", "federated", "new sensors")
    aliases = {name: alias for alias, name in ALIASES.items()}
    for name in METHODS:
        try:
            method = METHODS[name]
        except ConfigError as error:  # a package that cannot be loaded hides no other method
            table.add_row(name, escape(error.problem))
            continue
        alias = f" (or {aliases[method.name]})" if method.name in aliases else ""
        federated, inductive = ("yes" if flag else "no" for flag in (method.federated, method.inductive))
        table.add_row(method.name + alias, method.label, ", ".join(method.sizes), federated, inductive)
    progress.out().print(table)


def resolve(
    data: Path | None,
    method: str | None,
    node_size: str | None,
    like: str | None,
    config: Path | None,
    changes: list[str],
    seed: int | None,
    device: str | None,
    default: str = DEFAULT_METHOD,
) -> Config:
    """The settings of a new run: the preset, then the file, then --set, then options; the last one wins.

    `default` is the method if neither the option nor the file names one.
    """
    from_file = toml.read_changes(config) if config else {}
    name, size = from_file.pop("method", default), from_file.pop("size", DEFAULT_SIZE)
    defaults = preset(method or name, node_size or size, like_of(like))
    configured = defaults.with_changes(from_file)  # the settings of the file must be valid on their own
    # `cnfgnn settings` prints every setting: nobody has chosen those that were left as they are.
    chosen = [key for key in from_file if configured.setting(key) != defaults.setting(key)]
    wanted: dict[str, Any] = dict(toml.parse_change(text) for text in changes)
    for option in ("method", "size"):
        if option in wanted:
            raise ConfigError(option, f"give it as --{option}, because other settings depend on it")
    return configured.with_given(chosen).with_changes(wanted | _of_options(data, seed, device))


def _of_options(data: Path | None, seed: int | None, device: str | None) -> dict[str, Any]:
    """The settings that have options of their own, as far as they were given."""
    path = None if data is None else str(data.absolute())
    given = {"data.path": path, "seed": seed, "compute.device": device}
    return {key: value for key, value in given.items() if value is not None}


def changes_to_go_on(
    earlier: Config,
    data: Path | None,
    method: str | None,
    config: Path | None,
    changes: list[str],
    seed: int | None,
    device: str | None,
) -> dict[str, Any]:
    """What a run that goes on from an earlier one changes of its settings; the last one wins, as in
    `resolve`."""
    from_file = toml.read_changes(config) if config else {}
    from_file.pop("size", None)
    defaults = preset(str(from_file.pop("method", earlier.method)))
    wanted = {key: v for key, v in from_file.items() if defaults.with_changes({key: v}) != defaults}
    if method is not None or defaults.method != method_of(earlier.method).name:
        wanted["method"] = method_of(method or defaults.method).name
    wanted |= dict(toml.parse_change(text) for text in changes)
    wanted |= _of_options(data, seed, device)
    return wanted


def refuse_with_from(options: Mapping[str, object]) -> None:
    """Refuse options that were given together with --from; an option that was not given is None."""
    for option, value in options.items():
        if value is not None:
            raise ConfigError(
                option, "a run that goes on keeps the architecture of the one before: leave it out"
            )


def refuse_with_resume(options: Mapping[str, object]) -> None:
    """Refuse options that were given together with --resume; an option that was not given is None."""
    for option, value in options.items():
        if value is not None:
            raise ConfigError(option, "a resumed run keeps the settings it began with; leave this option out")


def reading_changes(changes: list[str] | None, keys: Sequence[str] = READING_KEYS) -> dict[str, Any]:
    """The values of --set for a command that only takes settings of how files are read."""
    wanted = dict(toml.parse_change(text) for text in changes or [])
    for key in wanted:
        if key not in keys:
            raise ConfigError(key, "this command only takes settings of how files are read", keys)
    return wanted


def like_of(name: str | None) -> Like | None:
    """The data set that --like names."""
    if name is not None and name not in LIKES:
        raise ConfigError("--like", f"no settings were published for {name!r}", LIKES)
    return name
