"""Settings as the command line gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cnfgnn.algorithm.methods import LIKES, Like, preset
from cnfgnn.config import toml
from cnfgnn.config.settings import Config
from cnfgnn.errors import ConfigError

MethodOption = Annotated[str | None, typer.Option(help="See `cnfgnn methods`.")]
SizeOption = Annotated[str | None, typer.Option("--size", help="63k or 727k: GRU baselines.")]
LikeOption = Annotated[str | None, typer.Option(help="Published settings of metr-la or pems-bay.")]
ConfigOption = Annotated[Path | None, typer.Option(help="A TOML file of settings.")]
ChangesOption = Annotated[list[str] | None, typer.Option("--set", help="One setting: training.rounds=3")]
ReadingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="How to read the files: data.dates=day-first, data.decimal=comma, data.timezone=Europe/Paris",
    ),
]
SeedOption = Annotated[int | None, typer.Option(help="Of weights, minibatches and coins.")]


def resolve(
    data: Path | None,
    method: str | None,
    node_size: str | None,
    like: str | None,
    config: Path | None,
    changes: list[str],
    seed: int | None,
    device: str | None,
) -> Config:
    """Preset, then the file, then single settings, then options: the later wins."""
    from_file = toml.read_changes(config) if config else {}
    name = method or from_file.pop("method", "cnfgnn")
    from_file.pop("method", None)
    size = node_size or from_file.pop("size", "63k")  # a file of an earlier version may name it
    from_file.pop("size", None)
    defaults = preset(name, size, like_of(like))
    settings = defaults.with_changes(from_file)  # what a file says must hold by itself
    # `cnfgnn settings` writes files that name every setting: what stands there as it was is nobody's choice
    chosen = [key for key in from_file if settings.setting(key) != defaults.setting(key)]
    wanted: dict[str, Any] = dict(toml.parse_change(text) for text in changes)
    for fixed in ("method", "size"):
        if fixed in wanted:
            raise ConfigError(fixed, f"give it as --{fixed}, because other settings follow from it")
    if data is not None:
        wanted["data.path"] = str(data.absolute())
    if seed is not None:
        wanted["seed"] = seed
    if device is not None:
        wanted["compute.device"] = device
    return settings.with_given(chosen).with_changes(wanted)


def reading_changes(changes: list[str] | None) -> dict[str, Any]:
    """The settings of reading files, for commands that take no others."""
    wanted = dict(toml.parse_change(text) for text in changes or [])
    valid = ("data.dates", "data.decimal", "data.timezone")
    for key in wanted:
        if key not in valid:
            raise ConfigError(key, "this command only takes settings of how files are read", valid)
    return wanted


def like_of(name: str | None) -> Like | None:
    if name is not None and name not in LIKES:
        raise ConfigError("--like", f"no settings were published for {name!r}", LIKES)
    return name
