"""The methods of the paper's tables: a strategy, a way of sharing weights, with or without a Graph Network.

Their settings are in config/presets.py. Other packages may add methods (config/outside.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from cnfgnn.config import outside
from cnfgnn.config.outside import Added
from cnfgnn.config.presets import ALIASES as ALIASES
from cnfgnn.config.presets import DEFAULT_METHOD, DEFAULT_SIZE, PRIVATE, method_preset, settings_of_method
from cnfgnn.config.presets import LIKES as LIKES
from cnfgnn.config.presets import Like as Like
from cnfgnn.config.settings import Config
from cnfgnn.errors import ConfigError

SHARINGS: Mapping[str, tuple[str, ...]] = {  # the ways to share weights that a strategy has
    "alternating": ("keep", "average", "neighbours"),
    "split": ("keep", "average", "neighbours"),
    "pooled": ("pooled",),
}


@dataclass(frozen=True)
class Method(Added):
    """One row of the tables, or a method of another package with what it brings along (`Added`)."""

    name: str
    label: str  # in tables and figures
    strategy: Literal["alternating", "split", "pooled"]
    sharing: Literal["keep", "average", "neighbours", "pooled"]
    graph_network: bool
    in_paper: bool = True

    def __post_init__(self) -> None:
        kinds: Mapping[str, tuple[Any, str]] = {
            "label": (str, "text"),
            "settings": (Mapping, "a mapping"),
            "graph_network": (bool, "True or False"),
            "network": (Callable | None, "a class or a function"),
            "node_model": (Callable | None, "a class or a function"),
            "server": (type | None, "a class"),
        }
        for part, (kind, wanted) in kinds.items():
            if not isinstance(value := getattr(self, part), kind):
                raise ConfigError("method", f"the {part} of {self.name} must be {wanted}, not {value!r}")
        if self.strategy not in list(SHARINGS):
            raise ConfigError("method", f"the strategy of {self.name} cannot be {self.strategy!r}", SHARINGS)
        if self.sharing not in SHARINGS[self.strategy]:
            problem = f"the sharing of {self.name}, which is {self.strategy}, cannot be {self.sharing!r}"
            raise ConfigError("method", problem, SHARINGS[self.strategy])
        if self.strategy == "split" and not self.graph_network:
            raise ConfigError("method", f"{self.name} needs a Graph Network, because its strategy is split")
        if self.network is not None and not self.graph_network:
            raise ConfigError("method", f"{self.name} has a network, so its graph_network must be True")
        if self.server is not None and not self.federated:
            raise ConfigError("method", f"{self.name} cannot have a server, because its strategy is pooled")

    @property
    def federated(self) -> bool:
        """Whether readings stay at their nodes; otherwise one party holds all of them."""
        return self.strategy != "pooled"

    @property
    def inductive(self) -> bool:
        """Whether a sensor that did not train can be forecast: only with weights that all nodes share."""
        return self.sharing in ("average", "pooled")

    @property
    def sizes(self) -> tuple[str, ...]:
        """The sizes of node model that the paper has for this method."""
        return settings_of_method(self.name).sizes


_TABLE = (
    Method("gru-central", "GRU (centralized)", "pooled", "pooled", False),
    Method("gru-gn-central", "GRU + GN (centralized)", "pooled", "pooled", True),
    Method("gru-local", "GRU (local)", "alternating", "keep", False),
    Method("gru-fedavg", "GRU + FedAvg", "alternating", "average", False),
    Method("gru-fmtl", "GRU + FMTL", "alternating", "neighbours", False),
    Method("sl", "CNFGNN (SL)", "split", "keep", True),
    Method("sl-fedavg", "CNFGNN (SL + FedAvg)", "split", "average", True),
    Method("at", "CNFGNN (AT, w/o FedAvg)", "alternating", "keep", True),
    Method("at-fedavg", "CNFGNN (AT + FedAvg)", "alternating", "average", True),
    Method("cnfgnn-plus", "CNFGNN+ (ours)", "split", "average", True, in_paper=False),
    Method(PRIVATE, "CNFGNN+ (private)", "split", "average", True, in_paper=False),
    Method("cnfgnn-plus-central", "CNFGNN+ (centralized)", "pooled", "pooled", True, in_paper=False),
    Method("mlp-fedavg", "CNFGNN+ without a graph", "alternating", "average", False, in_paper=False),
    Method("mlp-central", "MLP (centralized)", "pooled", "pooled", False, in_paper=False),
)
BUILT_IN: Mapping[str, Method] = {method.name: method for method in _TABLE}


class _AllMethods(Mapping[str, Method]):
    """Those of this package, then those that others add; of these, only one that is looked up is loaded."""

    def __getitem__(self, name: str) -> Method:
        if name in BUILT_IN:
            return BUILT_IN[name]
        found = outside.find(name)
        if not isinstance(found, Method):
            raise KeyError(name)
        return replace(found, in_paper=False)

    def __contains__(self, name: object) -> bool:
        return name in BUILT_IN or name in outside.names()

    def __iter__(self) -> Iterator[str]:
        return iter([*BUILT_IN, *outside.names()])

    def __len__(self) -> int:
        return len(BUILT_IN) + len(outside.names())


METHODS: Mapping[str, Method] = _AllMethods()


def register(method: Method) -> Method:
    """Add a method of your own to those of this process, until it ends.

    An entry point of the group `cnfgnn.methods` does the same in every process of a machine on which your
    package is installed; a federation and `--jobs` need it.

    Args:
        method: The method, with what it brings along.

    Returns:
        The same method.

    Raises:
        ConfigError: cnfgnn has a method of this name, or it cannot be trained with its settings.
    """
    if not isinstance(method, Method):
        raise ConfigError("method", f"a cnfgnn.Method can be registered, not {method!r}")
    with outside.added_if_it_works(method.name, method):
        check_method(preset(method.name))
    return method


def method_of(name: str) -> Method:
    """The method with this name or alias."""
    if isinstance(name, str):  # a file may hold anything
        name = ALIASES.get(name, name)
    if not isinstance(name, str) or name not in METHODS:
        raise ConfigError("method", f"there is no method {name!r}", [*METHODS, *ALIASES])
    return METHODS[name]


def preset(
    name: str = DEFAULT_METHOD, size: str = DEFAULT_SIZE, like: Like | None = None, inductive: bool = False
) -> Config:
    """The settings of a method: as published for a data set, or as they suit other data.

    Args:
        name: A method or an alias; `METHODS` and `cnfgnn methods` list them.
        size: Parameters of a node model, "63k" or "727k"; only the GRU baselines come in both sizes.
        like: The data set whose published settings to use; None for data of one's own, which are trained
            without scheduled sampling and with missing readings masked.
        inductive: With `like`: the settings of the paper's experiment with sensors that do not train.

    Raises:
        ConfigError: There is no such method, or nothing was published for this size or data set.
    """
    return method_preset(method_of(name).name, size, like, inductive)


def check_method(config: Config) -> Method:
    """The method of a configuration.

    Raises:
        ConfigError: The method cannot be trained with these settings.
    """
    method = method_of(config.method)
    if method.graph_network != (config.model.embedding > 0):
        needed = "at least 1" if method.graph_network else "0"
        raise ConfigError("model.embedding", f"{method.name} needs {needed}, not {config.model.embedding}")
    if method.strategy == "split" and config.training.optimizer_state != "kept":
        raise ConfigError(
            "training.optimizer_state",
            f"{method.name} takes one optimiser step per minibatch, so its optimisers must keep their state",
            ["kept"],
        )
    if config.model.personal and method.federated:
        able = ", ".join(m.name for m in _TABLE if not m.federated)
        problem = (
            f"must be 0 for {method.name}; only methods on pooled data learn an embedding of each sensor"
        )
        raise ConfigError("model.personal", f"{problem}: {able}")
    if config.training.seen < 1 and not (method.inductive and method.federated):
        able = ", ".join(m.name for m in _TABLE if m.inductive and m.federated)
        raise ConfigError(
            "training.seen",
            f"must be 1 for {method.name}, which has no weights for sensors that do not train; smaller values"
            f" are for {able}",
        )
    return method
