"""The settings that every node needs to take part; they travel with `prepare`.

Which settings of the configuration these are, and which values a site accepts, is declared where the settings
are (config/settings.py: `sent_to_nodes=True`). A few more numbers follow from the configuration and
the set-up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from cnfgnn.config import outside
from cnfgnn.config.declarations import Declaration
from cnfgnn.config.settings import SETTINGS, Config, Loss, Missing, ModelConfig, Wire
from cnfgnn.data.inputs import NO_INPUTS, InputCounts
from cnfgnn.errors import ConfigError
from cnfgnn.models.gru import EncoderDecoder
from cnfgnn.models.plus import node_model

StateFormat = Literal["full", "bf16", "recomputed"]  # of hidden states, see compute/memory_plan.py


OWN_SETTINGS = re.compile(r"\{[ -~]{0,900}\}")  # a table on one line


@dataclass(frozen=True)
class OutsideModel:
    """A node model of another package: by the name of its method, which the node looks up among the packages
    that are installed where it is, and the settings of its own."""

    method: Annotated[str, Declaration(key="own_model", form=outside.NAME)]
    settings: Annotated[str, Declaration(key="own_settings", form=OWN_SETTINGS)] = "{}"

    def made(self, model: ModelConfig, history: int, horizon: int, inputs: InputCounts) -> EncoderDecoder:
        added = outside.find(self.method)
        if added is None or added.node_model is None:
            problem = f"the package with the node model of {self.method} is not installed here"
            raise ConfigError("method", problem)
        own = outside.read(self.method, self.settings)
        made = added.node_model(model, own, history, horizon, inputs)
        if not isinstance(made, EncoderDecoder):
            raise ConfigError("method", f"its node model is a {type(made).__name__}, not an EncoderDecoder")
        if made.embedding != model.embedding_width:
            problem = f"embedding of its node model must be {model.embedding_width}, as model.embedding"
            raise ConfigError("method", f"{problem} says, not {made.embedding}")
        if made.embedding and made.hidden * made.layers < model.sent_width:
            problem = f"h_c of its node model must have at least {model.sent_width} numbers, as model.hidden"
            raise ConfigError("method", f"{problem} says, not {made.hidden * made.layers}")
        return made


@dataclass(frozen=True)
class NodeSettings:
    """What a node needs to know. `model` has only the node's part: the Graph Network stays at the server."""

    model: ModelConfig
    seed: int
    missing: Missing
    client_batch: Annotated[int, SETTINGS["training.client_batch"]]
    server_batch: Annotated[int, SETTINGS["training.server_batch"]]
    client_lr: Annotated[float, SETTINGS["training.client_lr"]]
    sampling: Annotated[float, SETTINGS["training.sampling"]]
    loss: Loss
    wire: Wire
    keep_optimizer: bool = False  # from round to round
    decay_rounds: int = 0  # the rounds over which learning rates fall to zero; 0: they are constant
    # The same for all sites: results must not depend on the grouping.
    state_format: Annotated[StateFormat, Declaration(key="keeping")] = "full"
    inputs: InputCounts = NO_INPUTS  # other variables and covariates that the model takes
    outside: OutsideModel | None = None  # the node model, if it is one of another package

    @classmethod
    def of(
        cls, config: Config, state_format: StateFormat = "full", inputs: InputCounts = NO_INPUTS
    ) -> NodeSettings:
        """The part of a configuration that is sent to nodes."""
        training = config.training
        sent = [setting for setting in SETTINGS.values() if setting.sent_to_nodes]
        of_model = {s.name: config.setting(s.key) for s in sent if s.key.startswith("model.")}
        return cls(
            model=ModelConfig(**of_model),
            **{s.name: config.setting(s.key) for s in sent if s.name not in of_model},
            keep_optimizer=training.optimizer_state == "kept",
            decay_rounds=training.rounds if training.schedule == "cosine" else 0,
            state_format=state_format,
            inputs=inputs,
            outside=outside_model(config),
        )

    def node_model(self, history: int, horizon: int) -> EncoderDecoder:
        """The node model that these settings describe."""
        if self.outside is not None:
            return self.outside.made(self.model, history, horizon, self.inputs)
        return node_model(self.model, history, horizon, self.inputs)


def outside_model(config: Config) -> OutsideModel | None:
    """The node model of a configuration, if it is one of another package."""
    added = outside.find(config.method)
    if added is None or added.node_model is None:
        return None
    return OutsideModel(config.method, outside.written(config.own))
