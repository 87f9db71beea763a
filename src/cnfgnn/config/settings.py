"""Every setting of a run, declared once; the presets of the methods change some of them."""

# ruff: noqa: RUF009  (`setting` returns a dataclass field)

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cnfgnn.config import outside
from cnfgnn.config.declarations import LARGEST, Setting, setting, settings_of
from cnfgnn.errors import ConfigError

MOST_UNITS = 1 << 16  # in one layer: a larger number is a typing error that would use up all memory
MOST_LAYERS = 100
LEVELS = 2  # of a hidden state, with `model.levels`
Missing = Literal["as-truth", "masked"]
Wire = Literal["full", "bf16", "int8"]
Precision = Literal["fp32", "tf32", "bf16", "fp64"]
Dates = Literal["auto", "day-first", "month-first"]
Decimal = Literal["auto", "point", "comma"]
Loss = Literal["square", "absolute"]


@dataclass(frozen=True)
class DataConfig:
    """Which readings to use, and how to read them and cut them into windows."""

    path: str = setting(
        "city", 'A file or folder of readings, or "city" for the synthetic city that [city] describes.'
    )
    history: int = setting(12, "Number of past time steps that the model sees.", at_least=1)
    horizon: int = setting(12, "Number of future time steps to forecast.", at_least=1)
    shares: tuple[float, float, float] = setting(
        (0.7, 0.1, 0.2), "Shares of the windows for training, validation and test; they add up to 1."
    )
    missing: Missing = setting(
        "masked",
        "Leave missing readings out of the loss (masked), or learn them as zeros like the paper (as-truth;"
        " deviation D6).",
        sent_to_nodes=True,
    )
    missing_value: tuple[float, ...] = setting(
        (), "Numbers that stand for a missing reading in the files, such as -999."
    )
    outliers: Literal["missing", "keep"] = setting(
        "missing", "Treat readings that are absurdly far from all others as missing, or keep them."
    )
    dates: Dates = setting("auto", "How the files write dates such as 01/02/2024; auto infers it.")
    decimal: Decimal = setting("auto", "The decimal separator of the files; auto infers it.")
    timezone: str = setting(
        "",
        "Time zone of local times in the files, such as Europe/Paris or +01:00, to convert them to UTC;"
        " leave empty to use them as they are.",
    )
    target: str = setting(
        "", "Name of the variable to forecast, if the files hold several; the others become further inputs."
    )
    inputs: str = setting(
        "all",
        "Variables and covariates to use besides the readings: all, none, or names separated by commas.",
    )

    @property
    def metric(self) -> Literal["masked_rmse", "rmse"]:
        """The error that progress and lists of runs show: over the readings that the loss is over."""
        return "masked_rmse" if self.missing == "masked" else "rmse"


@dataclass(frozen=True)
class CityConfig:
    """The synthetic city, used where data.path is "city"."""

    sensors: int = setting(24, "Number of sensors in the synthetic city.", at_least=1)
    days: float = setting(14.0, "Number of days of readings.", above=0)
    seed: int = setting(0, "Random seed of the city; another seed gives another city.", at_least=0)
    inputs: bool = setting(
        False,
        "Let it rain at times, and add what else is known: the flow at each sensor, and a forecast of rain.",
    )


@dataclass(frozen=True)
class GraphConfig:
    """The graph between the sensors."""

    direction: Literal["files", "paper"] = setting(
        "files",
        "Direction of the edges: as in the files, or reversed as in the paper's text (deviation D1).",
        hidden=True,
    )


@dataclass(frozen=True)
class ModelConfig:
    """The node model, and the Graph Network at the server (gn_*)."""

    hidden: int = setting(
        64, "Width of a node's hidden state.", at_least=1, at_most=MOST_UNITS, sent_to_nodes=True
    )
    layers: int = setting(
        1,
        "Number of GRU layers; more than one only for the GRU baselines without a Graph Network.",
        at_least=1,
        at_most=MOST_LAYERS,
        sent_to_nodes=True,
    )
    embedding: int = setting(
        64,
        "Width of the embedding that the Graph Network returns to a node; 0 without a Graph Network.",
        at_least=0,
        at_most=MOST_UNITS,
        sent_to_nodes=True,
    )
    gn_widths: tuple[int, ...] = setting(
        (256, 256, 128),
        "Widths of the hidden layers of the Graph Network's perceptrons.",
        at_least=1,
        at_most=MOST_UNITS,
        not_empty=True,
    )
    gn_layers: int = setting(
        2, "Number of Graph Network layers: how many edges information crosses.", at_least=1
    )
    gn_mean: bool = setting(False, "Average messages and nodes in the Graph Network; the paper sums them.")
    global_input: Literal["empty", "zero"] = setting(
        "empty",
        "Global attribute at the Graph Network's input: left out, or zeros (deviation D2).",
        hidden=True,
    )
    encoder: Literal["gru", "perceptron"] = setting(
        "gru",
        "Encoder of past readings: the paper's GRU, or a perceptron over all steps at once.",
        sent_to_nodes=True,
    )
    decoder: Literal["autoregressive", "direct"] = setting(
        "autoregressive",
        "Forecast step by step like the paper, or all steps at once (direct).",
        sent_to_nodes=True,
    )
    change: bool = setting(
        False, "Forecast the change since the last reading instead of the reading.", sent_to_nodes=True
    )
    linear: bool = setting(
        False,
        "Forecast the change from a linear forecast that each node makes by itself: see docs/algorithm.md.",
        sent_to_nodes=True,
    )
    levels: bool = setting(
        False,
        "Begin each hidden state with two averages of the past readings, and each embedding with their means"
        " over the neighbours and over all nodes.",
        sent_to_nodes=True,
    )
    gaps: bool = setting(False, "Tell the encoder how old readings are that fill gaps.", sent_to_nodes=True)
    profile: bool = setting(
        False,
        "Tell the encoder what the sensor usually reads at the forecast times, by its weekly profile and by"
        " the days and weeks before; it stays at the node.",
        sent_to_nodes=True,
    )
    calendar: int = setting(
        0,
        "Width of learned embeddings of the time of day and the day of the week; 0 for none.",
        at_least=0,
        at_most=MOST_UNITS,
        sent_to_nodes=True,
    )
    personal: int = setting(
        0,
        "Width of a learned embedding of each sensor, for methods on pooled data; 0 for none.",
        at_least=0,
        at_most=MOST_UNITS,
        sent_to_nodes=True,
    )
    sent: int = setting(
        0,
        "Send only the first so many numbers of each hidden state to the server; 0 sends all.",
        at_least=0,
        at_most=MOST_UNITS,
        sent_to_nodes=True,
    )

    @property
    def state_width(self) -> int:
        """Numbers in a node's hidden state h_c: the levels, then all layers side by side."""
        return self.level_width + self.hidden * self.layers

    @property
    def sent_width(self) -> int:
        """How many numbers of h_c a node sends to the server: its first ones."""
        whole = self.hidden * self.layers
        return self.level_width + (min(self.sent, whole) if self.sent else whole)

    @property
    def level_width(self) -> int:
        """How many numbers of h_c are levels: averages of past readings, which are not learned."""
        return LEVELS if self.levels else 0

    @property
    def embedding_width(self) -> int:
        """Numbers in the embedding h_G: what the Graph Network returns, then the means of the levels
        over a node's neighbours and over all nodes."""
        return self.learned_width + 2 * self.level_width if self.embedding else 0

    @property
    def learned_width(self) -> int:
        """Numbers of h_G that the Graph Network returns: all but the means of levels."""
        return self.embedding

    @property
    def takes_inputs(self) -> bool:
        """Whether the node model uses other variables and covariates: the paper's encoder does not."""
        return self.encoder == "perceptron"

    @property
    def extensions(self) -> dict[str, Any]:
        """What the node model has beyond the paper's, by setting; empty for the paper's own model.

        Sizes are not extensions, and neither is `sent`: it does not change the model.
        """
        sizes = ("hidden", "layers", "embedding", "sent")
        extensions = {}
        for declared in settings_of(ModelConfig):
            value = getattr(self, declared.name)
            if declared.sent_to_nodes and declared.name not in sizes and value != declared.default:
                extensions[declared.name] = value
        return extensions


@dataclass(frozen=True)
class TrainingConfig:
    """How long and how to train."""

    rounds: int = setting(50, "Maximum number of global rounds (R_g in the paper).", at_least=1)
    patience: int = setting(20, "Stop after so many rounds without a better validation error.", at_least=1)
    client_rounds: int = setting(
        1, "Epochs that each node trains on its own readings per global round (R_c).", at_least=1
    )
    server_rounds: int = setting(
        1, "Epochs that the server trains the Graph Network per global round (R_s).", at_least=1
    )
    client_batch: int = setting(
        128,
        "Windows in a minibatch of a node; the default is cut to the number of training windows.",
        at_least=1,
        sent_to_nodes=True,
    )
    server_batch: int = setting(
        48,
        "Windows in a minibatch of the server; the default is cut to the number of training windows.",
        at_least=1,
        sent_to_nodes=True,
    )
    client_lr: float = setting(1e-3, "Learning rate of the nodes.", above=0, sent_to_nodes=True)
    server_lr: float = setting(1e-3, "Learning rate of the Graph Network.", above=0)
    optimizer_state: Literal["fresh", "kept"] = setting(
        "fresh", "Reset the nodes' optimisers at each round, or keep their state (deviation D4).", hidden=True
    )
    sampling: float = setting(
        0.0,
        "Decay constant k of scheduled sampling; 0 feeds the decoder only its own forecasts (deviation D3).",
        at_least=0,
        sent_to_nodes=True,
    )
    loss: Loss = setting("square", "Train on squared or on absolute errors.", sent_to_nodes=True)
    schedule: Literal["constant", "cosine"] = setting(
        "constant", "Keep both learning rates constant, or lower them to zero over training.rounds."
    )
    fmtl_lambda: float = setting(
        0.1, "Strength with which gru-fmtl pulls the weights of neighbours together.", at_least=0
    )
    fmtl_norm: Literal["squared", "plain"] = setting(
        "squared",
        "Norm in the penalty of gru-fmtl: squared, or plain as in the published code (deviation D5).",
        hidden=True,
    )
    average_every: int = setting(
        0,
        "Average weights after so many minibatches; 0 averages once per round.",
        at_least=0,
    )
    wire: Wire = setting(
        "full",
        "Encoding of numbers on the wire: as computed, two bytes (bf16), or one byte (int8; weights two).",
        sent_to_nodes=True,
    )
    seen: float = setting(
        1.0,
        "Share of the sensors, from west to east, that train; the others are forecast without training.",
        above=0,
        at_most=1,
    )


@dataclass(frozen=True)
class PrivacyConfig:
    """What the server of a simulation may learn of the readings. In a federation each site decides."""

    blur: float = setting(
        0.0,
        "Noise on the copy of the readings that everything sent is computed from, as a standard deviation in"
        " the readings' unit; 0 for no noise.",
        at_least=0,
    )
    inputs: str = setting(
        "",
        "The same noise for each variable and covariate, in its own unit, or public if it needs none, such as"
        " flow=200, holiday=public; necessary for each of them where the readings are blurred.",
    )


@dataclass(frozen=True)
class ComputeConfig:
    """Where and in which precision to compute."""

    device: str = setting("auto", "Device to compute on: auto, cpu, cuda, cuda:1 and so on.")
    precision: Precision = setting("fp32", "Number format of computations.")
    memory: float = setting(
        0.0,
        "GiB for hidden states and embeddings of all training windows, and as much again for what is computed"
        " at a time; 0 allows half of the device's memory.",
        at_least=0,
    )


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    method: str = setting("at-fedavg", "The method to train; `cnfgnn methods` lists them.")
    seed: int = setting(
        1,
        "Random seed of initial weights, minibatches and scheduled sampling.",
        at_least=0,
        at_most=LARGEST,
        sent_to_nodes=True,
    )
    data: DataConfig = field(default_factory=DataConfig)
    city: CityConfig = field(default_factory=CityConfig)
    graph: GraphConfig = field(default_factory=GraphConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    own: Any = None  # of a method from another package: an instance of the class that declares them
    # Not a setting: the keys that a person has set. Only the other settings may adapt to the data.
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def with_changes(self, changes: Mapping[str, Any]) -> Config:
        """Return a copy with other values, such as {"training.rounds": 3, "seed": 2}.

        Raises:
            ConfigError: A key is unknown, or its value has the wrong type or is out of range.
        """
        config = self
        given = set(self.given)
        for key, value in sorted(changes.items(), key=lambda change: change[0] != "method"):
            if not _is_empty_section(key, value):
                config = _with_value(config, key, value)
                given.add(key)
        config = dataclasses.replace(config, given=frozenset(given))
        config.check()
        return config

    def with_given(self, keys: Iterable[str]) -> Config:
        """Return a copy that records exactly `keys` as the settings that a person has set."""
        return dataclasses.replace(self, given=frozenset(keys))

    def as_dict(self) -> dict[str, Any]:
        """All settings by name; each section is a dict of its own."""
        settings = dataclasses.asdict(self)
        del settings["given"]
        if self.own is None:
            del settings["own"]
        return settings

    @property
    def keys(self) -> tuple[str, ...]:
        """The dotted keys of all settings, with those of the method's own."""
        return tuple(declarations(self))

    def setting(self, key: str) -> Any:
        """The value of an existing dotted key."""
        value: Any = self
        for name in key.split("."):
            value = getattr(value, name)
        return value

    def check(self) -> None:
        """Raise ConfigError if a value is out of range or two settings contradict each other."""
        for declared in declarations(self).values():
            declared.check(self.setting(declared.key))
        _check_layers(self.model)


SETTINGS: Mapping[str, Setting] = {declared.key: declared for declared in settings_of(Config)}
SECTIONS = tuple(dict.fromkeys(key.partition(".")[0] for key in SETTINGS if "." in key))


def declarations(config: Config) -> Mapping[str, Setting]:
    """Every setting by its key, with those of the method's own."""
    own = {declared.key: declared for declared in outside.declared(config.own)}
    return {**SETTINGS, **own} if own else SETTINGS


def settings_table(include_hidden: bool = False) -> list[Setting]:
    """All settings with key, type, default, range and help, in the order of a configuration file."""
    return [declared for declared in SETTINGS.values() if include_hidden or not declared.hidden]


def _check_layers(model: ModelConfig) -> None:
    """Allow several layers only in the paper's GRU without a Graph Network."""
    if model.layers == 1:
        return
    single = dict(model.extensions)
    if model.embedding:
        single = {"embedding": model.embedding, **single}
    for name, value in single.items():
        shown = str(value).lower() if isinstance(value, bool) else value
        raise ConfigError(
            "model.layers", f"a node model with model.{name}={shown} has one layer, not {model.layers}"
        )


def _with_value(config: Config, key: str, value: Any) -> Config:
    declared = declarations(config)
    if key not in declared:
        raise _unknown(config, key)
    section, _, name = key.rpartition(".")
    change = {name: declared[key].read(value)}
    if key == "method" and value != config.method:
        change["own"] = outside.own_settings(value)
    if section:
        change = {section: dataclasses.replace(getattr(config, section), **change)}
    return dataclasses.replace(config, **change)


def _is_empty_section(key: str, value: Any) -> bool:
    """Whether this is a table of a file without any settings in it."""
    return key in SECTIONS and value == {}


def _unknown(config: Config, key: str) -> ConfigError:
    """Say what is wrong with a key that names no setting, and which ones there are."""
    first, _, rest = key.partition(".")
    if first == outside.OWN:
        own = [s.key for s in declarations(config).values() if s.key.startswith(f"{first}.")]
        if not own and outside.is_missing(config.method):
            return ConfigError(
                "method", f"there is no {config.method} here: install the package that offers it"
            )
        problem = "has no such setting" if own else "has no settings of its own"
        return ConfigError(key, f"{config.method} {problem}", own)
    if first in SECTIONS:
        names = [s.name for s in SETTINGS.values() if s.key.startswith(f"{first}.")]
        if not rest:
            return ConfigError(
                key, "is a section: set one of its settings", [f"{first}.{name}" for name in names]
            )
        name = rest.partition(".")[0]
        if name in names:
            return ConfigError(key, f"{name!r} is a setting, not a section")
        return ConfigError(key, f"there is no setting {name!r}", names)
    if first in SETTINGS:
        return ConfigError(key, f"{first!r} is a setting, not a section")
    top = [s.key for s in SETTINGS.values() if "." not in s.key]
    return ConfigError(key, f"there is no setting {first!r}", [*top, *SECTIONS])
