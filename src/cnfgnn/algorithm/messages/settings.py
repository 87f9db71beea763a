"""The settings that every node needs to take part; they travel with `prepare`.

Which settings of the configuration these are, and which values a site accepts, is declared where the settings
are (config/settings.py: `sent_to_nodes=True`). A few more numbers follow from the configuration and
the set-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from cnfgnn.config.declarations import LARGEST, Setting
from cnfgnn.config.settings import SETTINGS, Config, Loss, Missing, ModelConfig, Wire
from cnfgnn.data.inputs import MOST_INPUTS, NO_INPUTS, InputCounts

StateFormat = Literal["full", "bf16", "recomputed"]  # of hidden states, see compute/memory_plan.py
_SENT = [setting for setting in SETTINGS.values() if setting.sent_to_nodes]
_SENT_OF_MODEL = [setting for setting in _SENT if setting.key.startswith("model.")]
_SENT_BESIDES_MODEL = [setting for setting in _SENT if not setting.key.startswith("model.")]


@dataclass(frozen=True)
class NodeSettings:
    """What a node needs to know. `model` has only the node's part: the Graph Network stays at the server."""

    seed: int
    missing: Missing
    model: ModelConfig
    client_batch: int
    server_batch: int
    client_lr: float
    sampling: float
    loss: Loss
    wire: Wire
    keep_optimizer: bool = False  # from round to round
    decay_rounds: int = 0  # the rounds over which learning rates fall to zero; 0: they are constant
    state_format: StateFormat = "full"  # the same for all sites: results must not depend on the grouping
    inputs: InputCounts = NO_INPUTS  # other variables and covariates that the model takes

    @classmethod
    def of(
        cls, config: Config, state_format: StateFormat = "full", inputs: InputCounts = NO_INPUTS
    ) -> NodeSettings:
        """The part of a configuration that is sent to nodes."""
        training = config.training
        return cls(
            model=ModelConfig(**_values(_SENT_OF_MODEL, config)),
            **_values(_SENT_BESIDES_MODEL, config),
            keep_optimizer=training.optimizer_state == "kept",
            decay_rounds=training.rounds if training.schedule == "cosine" else 0,
            state_format=state_format,
            inputs=inputs,
        )

    def to_numbers(self) -> dict[str, int | float | bool | str]:
        """Everything by name, as `prepare` carries it."""
        numbers = {setting.name: getattr(self.model, setting.name) for setting in _SENT_OF_MODEL}
        numbers |= {setting.name: getattr(self, setting.name) for setting in _SENT_BESIDES_MODEL}
        return numbers | {
            "keep_optimizer": self.keep_optimizer,
            "decay_rounds": self.decay_rounds,
            "keeping": self.state_format,
            **self.inputs._asdict(),
        }

    @classmethod
    def from_numbers(cls, numbers: Mapping[str, Any]) -> NodeSettings:
        """The settings among the numbers of `prepare`, which a site has checked against the rules."""
        model = {setting.name: numbers[setting.name] for setting in _SENT_OF_MODEL}
        others = {setting.name: numbers[setting.name] for setting in _SENT_BESIDES_MODEL}
        return cls(
            model=ModelConfig(**model),
            **others,
            keep_optimizer=numbers["keep_optimizer"],
            decay_rounds=numbers["decay_rounds"],
            state_format=numbers["keeping"],
            inputs=InputCounts(numbers.get("variables", 0), numbers.get("covariates", 0)),
        )


def _values(settings: list[Setting], config: Config) -> dict[str, Any]:
    return {setting.name: config.setting(setting.key) for setting in settings}


_DERIVED_RULES: Mapping[str, Callable[[object], bool]] = {
    "keep_optimizer": lambda value: isinstance(value, bool),
    "decay_rounds": lambda value: type(value) is int and 0 <= value <= LARGEST,
    "keeping": lambda value: isinstance(value, str) and value in get_args(StateFormat),
    "variables": lambda value: type(value) is int and 0 <= value <= MOST_INPUTS,
    "covariates": lambda value: type(value) is int and 0 <= value <= MOST_INPUTS,
}
_SENT_RULES = {setting.name: setting.accepts for setting in _SENT}
# Which values a site accepts for each number: of exactly the right type (true is not 1) and in range.
NODE_SETTING_RULES: Mapping[str, Callable[[object], bool]] = {
    **_SENT_RULES,
    **_DERIVED_RULES,
}
