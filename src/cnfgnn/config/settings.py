"""Every setting of a run, with its default; the presets of the paper's methods change some of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_type_hints

from cnfgnn.errors import ConfigError

MOST_UNITS = 1 << 16  # of a layer: more is a slip of the finger, and would take all memory before it fails
BEYOND_THE_PAPER = (  # settings of the node model
    *("encoder", "decoder", "change", "gaps", "profile", "calendar", "personal", "personal_head"),
)
Missing = Literal["as-truth", "masked"]
Wire = Literal["full", "bf16", "int8"]
Precision = Literal["fp32", "tf32", "bf16", "fp64"]
Dates = Literal["auto", "day-first", "month-first"]
Decimal = Literal["auto", "point", "comma"]


@dataclass(frozen=True)
class DataConfig:
    path: str = (
        "city"  # a file or folder of readings, or the synthetic city that the section [city] describes
    )
    history: int = 12
    horizon: int = 12
    shares: tuple[float, float, float] = (0.7, 0.1, 0.2)  # of the windows: train, validation, test
    missing: Missing = "masked"
    missing_value: tuple[float, ...] = ()  # numbers that stand for "missing", such as -999
    outliers: Literal["missing", "keep"] = "missing"  # readings absurdly far from all others: data/quality.py
    dates: Dates = "auto"  # how files write 01/02/2024; auto: as those days tell that can only be one of both
    decimal: Decimal = "auto"  # how files write numbers; auto: as those tell that can only be one of both
    timezone: str = ""  # of clock times, such as Europe/Paris or +01:00, which then become UTC; empty: kept


@dataclass(frozen=True)
class CityConfig:
    sensors: int = 24
    days: float = 14.0
    seed: int = 0
    dropout: float = 0.01
    noise: float = 1.0  # mph


@dataclass(frozen=True)
class GraphConfig:
    direction: Literal["files", "paper"] = "files"  # Deviation D1: the paper's text has W transposed


@dataclass(frozen=True)
class ModelConfig:
    hidden: int = 64
    layers: int = 1
    embedding: int = 64  # width of h_G; 0 without a graph network
    gn_widths: tuple[int, ...] = (256, 256, 128)
    gn_layers: int = 2
    gn_mean: bool = False  # of messages and of nodes, where the paper adds them up
    global_input: Literal["empty", "zero"] = "empty"  # Deviation D2: u at the graph network's input
    # beyond the paper, see models/options.py
    encoder: Literal["gru", "perceptron"] = "gru"
    decoder: Literal["autoregressive", "direct"] = "autoregressive"
    change: bool = False  # forecast what is added to the last reading
    gaps: bool = False  # tell the model which readings are missing
    profile: bool = False  # tell it what the sensor usually reads at the times ahead; that never leaves it
    calendar: int = 0  # width of learned embeddings of time of day and day of week
    personal: int = 0  # width of the sensor's own embedding, which never leaves it
    personal_head: bool = False  # the sensor's own addition to the last layer, which never leaves it
    sent: int = 0  # how many numbers of h_c are sent at most; 0: all


@dataclass(frozen=True)
class TrainingConfig:
    rounds: int = 50  # R_g, at most
    patience: int = 20  # rounds without a better validation loss before stopping
    client_rounds: int = 1  # R_c
    server_rounds: int = 1  # R_s
    client_batch: int = 128  # windows; a default is cut to as many as train, a value you give is refused
    server_batch: int = 48
    client_lr: float = 1e-3
    server_lr: float = 1e-3
    optimizer_state: Literal["fresh", "kept"] = "fresh"  # of the nodes, from round to round
    sampling: float = 0.0  # k of scheduled sampling, 0 = free running
    loss: Literal["square", "absolute"] = "square"
    schedule: Literal["constant", "cosine"] = "constant"  # of both learning rates, over the rounds
    fmtl_lambda: float = 0.1
    fmtl_norm: Literal["squared", "plain"] = "squared"  # Deviation D5: plain is the published code's
    average_every: int = 0  # minibatches; 0: nodes that share their weights do so once a round
    wire: Wire = "full"  # how numbers travel: as computed, in two bytes, or all but weights in one
    seen: float = 1.0  # share of the sensors, by longitude, that train (inductive learning)


@dataclass(frozen=True)
class ComputeConfig:
    device: str = "auto"
    precision: Precision = "fp32"
    memory: float = 0.0  # GiB for h_c and h_G of all training windows; 0 = half of what the device has


@dataclass(frozen=True)
class Config:
    method: str = "at-fedavg"
    size: Literal["63k", "727k"] = "63k"  # of the GRU baselines' node models
    seed: int = 1
    data: DataConfig = field(default_factory=DataConfig)
    city: CityConfig = field(default_factory=CityConfig)
    graph: GraphConfig = field(default_factory=GraphConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    # not a setting: the keys that somebody chose. What nobody chose may adapt to the data.
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def with_changes(self, changes: Mapping[str, Any]) -> Config:
        """A copy with other values: {"training.rounds": 3, "seed": 2}; refuses keys that do not exist."""
        config: Any = self
        for key, value in changes.items():
            config = _changed(config, key, key.split("."), value)
        config = dataclasses.replace(config, given=self.given | changes.keys())
        config.check()
        return config  # type: ignore[no-any-return]

    def with_given(self, keys: Iterable[str]) -> Config:
        """The same settings, of which somebody chose those of `keys` and no others."""
        return dataclasses.replace(self, given=frozenset(keys))

    def as_dict(self) -> dict[str, Any]:
        """Every setting by its name, and each section as a dict of its own."""
        settings = dataclasses.asdict(self)
        del settings["given"]
        return settings

    def setting(self, key: str) -> Any:
        """The value of a dotted key that exists."""
        value: Any = self
        for name in key.split("."):
            value = getattr(value, name)
        return value

    def check(self) -> None:
        """Refuse values that no run can have."""
        t, m = self.training, self.model
        _at_least(1, "training.rounds", t.rounds)
        _at_least(1, "training.patience", t.patience)
        _at_least(1, "training.client_rounds", t.client_rounds)
        _at_least(1, "training.server_rounds", t.server_rounds)
        _at_least(1, "training.client_batch", t.client_batch)
        _at_least(1, "training.server_batch", t.server_batch)
        _at_least(0, "training.sampling", t.sampling)
        _at_least(0, "training.fmtl_lambda", t.fmtl_lambda)
        _at_least(0, "training.average_every", t.average_every)
        _at_least(1, "model.hidden", m.hidden)
        _at_least(1, "model.layers", m.layers)
        _at_least(0, "model.embedding", m.embedding)
        _at_least(1, "model.gn_layers", m.gn_layers)
        _at_least(0, "model.calendar", m.calendar)
        _at_least(0, "model.personal", m.personal)
        _at_least(0, "model.sent", m.sent)
        _at_least(0, "seed", self.seed)
        _at_least(0, "compute.memory", self.compute.memory)
        if self.seed >= 2**63:
            raise ConfigError("seed", "must be below 2^63")
        if not m.gn_widths or min(m.gn_widths) < 1:
            raise ConfigError("model.gn_widths", f"one or more widths of at least 1, not {m.gn_widths}")
        _check_widths(m)
        if m.layers > 1:
            _check_layers(m)
        if not (0 < t.client_lr < math.inf):
            raise ConfigError("training.client_lr", f"must be a positive number, not {t.client_lr}")
        if not (0 < t.server_lr < math.inf):
            raise ConfigError("training.server_lr", f"must be a positive number, not {t.server_lr}")
        if not 0 < t.seen <= 1:
            raise ConfigError("training.seen", f"must lie in (0, 1], not {t.seen}")


def _check_widths(model: ModelConfig) -> None:
    widths = {name: getattr(model, name) for name in ("hidden", "embedding", "calendar", "personal")}
    for name, width in {**widths, "gn_widths": max(model.gn_widths)}.items():
        if width > MOST_UNITS:
            raise ConfigError(f"model.{name}", f"a width of at most {MOST_UNITS} can be meant, not {width}")


def _check_layers(model: ModelConfig) -> None:
    """Refuse several layers for every node model but the paper's GRU without a graph."""
    paper = ModelConfig(embedding=0)
    for name in ("embedding", *BEYOND_THE_PAPER):
        if (value := getattr(model, name)) != getattr(paper, name):
            shown = str(value).lower() if isinstance(value, bool) else value
            raise ConfigError(
                "model.layers", f"a node model with model.{name}={shown} has one layer, not {model.layers}"
            )


def _at_least(least: float, key: str, value: float) -> None:
    if not least <= value < math.inf:
        raise ConfigError(key, f"must be at least {least}, not {value}")


def _changed(section: Any, key: str, path: list[str], value: Any) -> Any:
    names = [f.name for f in dataclasses.fields(section) if f.name != "given"]
    if path[0] not in names:
        raise ConfigError(key, f"there is no setting {path[0]!r}", names)
    old = getattr(section, path[0])
    if dataclasses.is_dataclass(old):
        if len(path) == 1 and value == {}:
            return section  # an empty table of a file
        if len(path) == 1:
            raise ConfigError(key, "is a section", [f"{key}.{f.name}" for f in dataclasses.fields(old)])
        return dataclasses.replace(section, **{path[0]: _changed(old, key, path[1:], value)})
    if len(path) > 1:
        raise ConfigError(key, f"{path[0]!r} is a setting, not a section")
    kind = get_type_hints(type(section))[path[0]]
    return dataclasses.replace(section, **{path[0]: _cast(key, kind, old, value)})


def _cast(key: str, kind: Any, old: Any, value: Any) -> Any:
    """`value` as the setting's type; a whole number will do for a float, nothing else is converted."""
    choices = get_args(kind)
    if isinstance(old, tuple):
        items = tuple(value) if isinstance(value, list | tuple) else None
        if choices[-1] is Ellipsis and _is_number(value):
            items = (value,)  # a list of one
        if items is None or not all(_is_number(item) for item in items):
            raise ConfigError(key, f"takes a list of numbers, not {value!r}")
        if choices[-1] is not Ellipsis and len(items) != len(choices):
            raise ConfigError(key, f"takes {len(choices)} numbers, not {len(items)}")
        return tuple(_cast(key, choices[0], choices[0](), item) for item in items)
    if isinstance(old, str):
        if choices and value not in choices:
            raise ConfigError(key, f"cannot be {value!r}", choices)
        if not isinstance(value, str):
            raise ConfigError(key, f"takes a word, not {value!r}")
        return value
    if isinstance(old, bool):
        if not isinstance(value, bool):
            raise ConfigError(key, f"takes true or false, not {value!r}")
        return value
    if not _is_number(value) or (isinstance(old, int) and int(value) != value):
        raise ConfigError(key, f"takes a {'whole ' if isinstance(old, int) else ''}number, not {value!r}")
    return int(value) if isinstance(old, int) else float(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 if isinstance(value, int) else math.isfinite(value)
