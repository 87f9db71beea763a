"""Where the plans in `experiments/` are: inside an installed package, or beside `src/` in a checkout."""

from __future__ import annotations

from pathlib import Path

from cnfgnn.errors import ConfigError


def experiment_file(name: str) -> Path:
    """The path of `experiments/NAME.toml`, which a wheel carries as `cnfgnn/experiments/NAME.toml`."""
    package = Path(__file__).parents[1]
    for folder in (package / "experiments", package.parents[1] / "experiments"):
        if (folder / f"{name}.toml").is_file():
            return folder / f"{name}.toml"
    raise ConfigError(
        name, f"experiments/{name}.toml is missing from this installation; install the package again"
    )
