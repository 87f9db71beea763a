"""What the operator gives the server to do. Commands load this, and so it needs no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cnfgnn.algorithm.methods import check_method
from cnfgnn.config.presets import BLUR
from cnfgnn.config.settings import Config
from cnfgnn.config.toml import flat
from cnfgnn.errors import ConfigError
from cnfgnn.federation.project import CLEANING_KEYS
from cnfgnn.privacy.inputs import INPUT_BLURS

RUNS = "runs"


@dataclass(frozen=True)
class Task:
    """What a job is to do. It travels with the job, so every site can read it."""

    do: str  # train, evaluate, forecast, live, or retrain: train beside a live task and judge
    run: str  # the name of the run's folder in the server's kit
    token: str = ""  # identifies the task's status to whoever gave the task
    settings: Mapping[str, Any] = field(default_factory=dict)  # of a new training
    given: Sequence[str] = ()  # the settings that somebody chose; the others may adapt to the data
    resume: bool = False
    wait: float = 60.0  # seconds to wait for sites that are not connected yet
    split: str = "test"
    intervals: Sequence[int] = ()  # levels in per cent that sites write beside their forecasts
    record: bool = False  # keep the hidden states that sites send, so that they can be attacked
    earlier: str = ""  # the name of the run that a new training goes on from; `settings` are changes to its
    live: Mapping[str, Any] = field(default_factory=dict)  # the `LiveTerms` of a live task
    line: str = ""  # of a retraining: the name of the run that the federation went live with
    hold_out: float = 3.0  # of a retraining: the days at the end that both models are judged by
    states: Mapping[str, Any] = field(default_factory=dict)  # of a retraining: what sites keep of others

    @property
    def forecasts(self) -> bool:
        """Whether it forecasts for the sites there are, whatever `min_sites` is, and never pauses."""
        return self.do in ("forecast", "live")


def check_federated(config: Config) -> None:
    """Refuse settings that need the readings of all sites in one place."""
    method = check_method(config)
    if not method.federated:
        problem = f"{method.name} pools all readings, so it cannot run in a federation: use cnfgnn train"
        raise ConfigError("--method", problem)
    of_sites = {BLUR: "each site sets its own blur, in its local/site.toml: leave it out"}
    of_sites[INPUT_BLURS] = "each site sets this under [inputs] in its local/site.toml: leave it out"
    for key in ("data.target", "data.inputs"):
        of_sites[key] = "each site sets this under [reading] in its local/site.toml: leave it out"
    for name in CLEANING_KEYS:
        problem = f"each site decides which of its readings are missing: set {name} in its local/site.toml"
        of_sites[f"data.{name}"] = problem
    for key, problem in of_sites.items():
        if key in config.given:
            raise ConfigError(key, problem)
    if config.training.fmtl_norm == "plain":
        problem = "plain is only possible in the simulator: use cnfgnn train"
        raise ConfigError("training.fmtl_norm", problem, ["squared"])
    if config.training.seen < 1:
        problem = "training on a part of the sensors is only possible in the simulator: use cnfgnn train"
        raise ConfigError("training.seen", problem)


def settings_of(config: Config) -> dict[str, Any]:
    """A configuration in the form that a task carries."""
    settings = flat(config.as_dict())
    del settings[BLUR]  # it may be part of a preset, but each site has its own
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}
