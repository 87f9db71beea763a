"""The set-up that the simulator and the federation share: from a configuration to a ready strategy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from cnfgnn.algorithm.aggregation import Share, average, keep, neighbours
from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.compute.learner import GraphLearner
from cnfgnn.algorithm.compute.memory_plan import MemoryPlan, SiteStates, bytes_needed, plan_memory
from cnfgnn.algorithm.messages.calls import Transport
from cnfgnn.algorithm.messages.ledger import Ledger
from cnfgnn.algorithm.messages.nodes import Nodes
from cnfgnn.algorithm.messages.settings import NodeSettings
from cnfgnn.algorithm.messages.sums import Sums
from cnfgnn.algorithm.methods import Method, check_method, preset
from cnfgnn.algorithm.owner import Owner
from cnfgnn.algorithm.pooled import Pooled
from cnfgnn.algorithm.server import Alternating, Split
from cnfgnn.algorithm.store import Store
from cnfgnn.config.settings import Config, TrainingConfig
from cnfgnn.data.graph import Graph
from cnfgnn.data.inputs import NO_INPUTS, InputCounts
from cnfgnn.data.series import Scaler
from cnfgnn.data.windows import SPLITS, Windows, check_splits
from cnfgnn.data.windows import Split as SplitName
from cnfgnn.errors import ConfigError, DataError
from cnfgnn.models.graphnet import Edges
from cnfgnn.models.gru import EncoderDecoder
from cnfgnn.models.params import Params

PLENTY = 24_000  # training windows for which the rounds of a preset are meant; fewer windows get more rounds
LEAST_MINIBATCHES = 16  # of an epoch, unless they would be smaller than the smallest
SMALLEST_BATCH = 16
LEAST_PATIENCE = 10  # rounds without improvement before training may end


class Strategy(Protocol):
    """A global round, and what is needed around it: evaluate, save, restore."""

    reached: Callable[[int, int], None]  # called with (round, phase) wherever a round could be resumed

    def round(self, r_g: int) -> None: ...

    def score(self, split: SplitName) -> Sums: ...

    def forecast(self, levels: Sequence[int] = ()) -> None: ...

    def ready(self, split: SplitName) -> None: ...

    def load_trained(self, theta: Params, state: Mapping[str, Tensor]) -> None: ...

    def go_on_from(self, theta: Params, state: Mapping[str, Tensor]) -> None: ...

    def save(self, tag: str, keep: Collection[str]) -> None: ...

    def restore(self, tag: str, to_learn: bool = True) -> None: ...

    @property
    def phases(self) -> tuple[int, ...]: ...

    @property
    def minibatches(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Experiment:
    """A strategy ready for its first round, with everything that was agreed on at set-up."""

    config: Config
    method: Method
    strategy: Strategy
    ledger: Ledger
    scaler: Scaler
    windows: Windows
    seen: Tensor | None  # (n,) bool; None if every node trains
    owners: Sequence[tuple[Tensor, Owner]] = ()  # the owners of nodes in this process, with their rows
    memory_plan: MemoryPlan = field(default_factory=MemoryPlan)  # of h_c and h_G of all training windows
    inputs: InputCounts = NO_INPUTS  # other variables and covariates


def federate(
    transport: Transport,
    graph: Graph,
    windows: Windows,
    config: Config,
    seen: Tensor | None,
    name: str,
    store: Store,
    tick: Callable[[], None] = lambda: None,
    scaler: Scaler | None = None,
    memory_plan: MemoryPlan | None = None,
    inputs: InputCounts = NO_INPUTS,
    kept_scaler: Scaler | None = None,
) -> Experiment:
    """Set up a federated method over any transport; the server contributes the graph and nothing else.

    A resumed run passes its earlier `memory_plan`. `kept_scaler` is the scale of the training that this one
    goes on from: its weights belong to it.
    """
    method = check_method(config)
    compute = Compute.of(config.compute)
    config, everyone, windows, scaler, memory_plan = _agree(
        transport, windows, config, method, seen, name, scaler, memory_plan, inputs, kept_scaler
    )
    nodes, train_graph = everyone, graph
    if seen is not None:
        nodes = everyone.among(seen.nonzero().flatten())
        train_graph = graph.subgraph(nodes.rows.numpy())
    edges = Edges.of(train_graph, compute.device, compute.dtype)
    strategy = _server_class(method)(
        nodes=nodes,
        graph=edges,
        everyone=everyone,
        whole_graph=edges if seen is None else Edges.of(graph, compute.device, compute.dtype),
        gn=_learner(config, method, compute),
        share=_share(config.training, method, train_graph),
        training=config.training,
        seed=config.seed,
        windows=windows.count("train"),
        store=store,
        tick=tick,
        state_format=memory_plan.state_format,
    )
    return Experiment(
        config, method, strategy, everyone.ledger, scaler, windows, seen, (), memory_plan, inputs
    )


def pool(
    transport: Transport,
    owners: Sequence[tuple[Tensor, Owner]],
    graph: Graph,
    windows: Windows,
    config: Config,
    name: str,
    store: Store,
    scaler: Scaler | None = None,
    inputs: InputCounts = NO_INPUTS,
    kept_scaler: Scaler | None = None,
) -> Experiment:
    """Set up a centralised method: one owner holds all nodes."""
    method = check_method(config)
    compute = Compute.of(config.compute)
    config, _, windows, scaler, _ = _agree(
        transport, windows, config, method, None, name, scaler, inputs=inputs, kept_scaler=kept_scaler
    )
    learner = _learner(config, method, compute)
    edges = Edges.of(graph, compute.device, compute.dtype)
    strategy = Pooled(owners[0][1], edges, learner, config.training, store)
    return Experiment(config, method, strategy, Ledger(), scaler, windows, None, owners, inputs=inputs)


def _agree(
    transport: Transport,
    windows: Windows,
    config: Config,
    method: Method,
    seen: Tensor | None,
    name: str,
    scaler: Scaler | None,
    memory_plan: MemoryPlan | None = None,
    inputs: InputCounts = NO_INPUTS,
    kept_scaler: Scaler | None = None,
) -> tuple[Config, Nodes, Windows, Scaler, MemoryPlan]:
    """Take the census, keep the windows that at least one node has, and send all nodes scale and settings."""
    if scaler is None:
        check_splits(windows, config.data.shares, name)
    everyone = Nodes(transport)
    moments, has = everyone.census(windows, config.data.missing)
    training = torch.ones(len(everyone), dtype=torch.bool) if seen is None else seen
    heard = {s: (h[training] if s == "train" else h).any(dim=0) for s, h in has.items()}
    # Nobody learns from windows before which nobody has read anything; evaluation counts their targets, too.
    kept = {s: (h if s == "train" or windows.ahead else torch.ones_like(h)).numpy() for s, h in heard.items()}
    windows = windows.only(kept)
    if windows.ahead and windows.count("test") == 0:
        raise DataError(name, f"no sensor has a reading in the last {windows.history} steps")
    for split in SPLITS:
        if scaler is None and not heard[split].any():
            kind = "training" if split == "train" else split
            raise DataError(name, f"there are no {kind} windows with readings")
    if scaler is None:
        config = fit_to_windows(config, method, windows.count("train"))
        scaler = kept_scaler or Scaler.of(moments[training])
    has = {s: has[s][:, torch.from_numpy(kept[s])] for s in SPLITS}
    compute = Compute.of(config.compute)
    everyone.has = {s: h.to(compute.device) for s, h in has.items() if not h.all()}
    if memory_plan is None:
        memory_plan = _memory_plan(config, method, compute, transport, training, windows.count("train"))
    settings = NodeSettings.of(config, memory_plan.state_format, inputs)
    everyone.prepare(settings, scaler.mean, scaler.std, windows)
    everyone.flush()
    return config, everyone, windows, scaler, memory_plan


def fit_to_windows(config: Config, method: Method, windows: int) -> Config:
    """The settings, as they suit so many training windows. What the user has set stays as it is.

    The methods beyond the paper take smaller minibatches and more rounds the fewer windows there are, so that
    the nodes take enough steps. For every method, minibatches are no larger than the number of windows; a
    larger size that the user set is refused, because the run would not be what was asked for.
    """
    used = []
    if method.strategy != "split":
        used.append("training.client_batch")
    if method.graph_network and method.federated:
        used.append("training.server_batch")
    for key in used:
        if config.setting(key) > windows and key in config.given:
            raise ConfigError(
                key,
                f"minibatches of {config.setting(key)} need more than the {windows} training windows: at most"
                f" {windows}",
            )
    suited: dict[str, int] = {}
    if not method.in_paper and (method.federated or method.graph_network):
        rounds = round(preset(method.name).training.rounds * max(1.0, PLENTY / windows) ** 0.25)
        steps = max(1, windows // LEAST_MINIBATCHES)
        suited = dict.fromkeys(used, max(SMALLEST_BATCH, 1 << (steps.bit_length() - 1)))
        suited |= {"training.rounds": rounds, "training.patience": max(LEAST_PATIENCE, rounds // 3)}
    for key in used:
        suited[key] = min(suited.get(key, windows), config.setting(key), windows)
    changes = {
        key: value
        for key, value in suited.items()
        if key not in config.given and value != config.setting(key)
    }
    return config.with_changes(changes).with_given(config.given) if changes else config


def _memory_plan(
    config: Config, method: Method, compute: Compute, transport: Transport, training: Tensor, windows: int
) -> MemoryPlan:
    """How alternating training stores hidden states of so many windows; other strategies store none."""
    if not _stores_states(method):
        return MemoryPlan()
    sites = []
    for limit, rows in zip(transport.memory_limits, transport.sites, strict=True):
        h_c, h_G = _elements(config, int(training[rows].sum()) * windows)
        sites.append(SiteStates(limit, h_c, h_G))
    m, sequences = config.model, int(training.sum()) * windows
    h_c, h_G = sequences * m.sent_width, sequences * m.embedding_width
    return plan_memory(compute, config.compute.memory, h_c, h_G, sites)


def _stores_states(method: Method) -> bool:
    return method.strategy == "alternating" and method.graph_network


def _elements(config: Config, sequences: int) -> tuple[int, int]:
    """Elements of h_c and of h_G that a site stores for so many sequences: nodes times training windows."""
    m = config.model
    return sequences * m.state_width, sequences * m.embedding_width


def state_bytes(experiment: Experiment, nodes: int) -> int:
    """Bytes that hidden states and embeddings take at a site of so many nodes, in the format of the run."""
    if not _stores_states(experiment.method):
        return 0
    h_c, h_G = _elements(experiment.config, nodes * experiment.windows.count("train"))
    needed = bytes_needed(h_c, h_G, Compute.of(experiment.config.compute).dtype)
    return needed[experiment.memory_plan.state_format]


def model_of(config: Config, inputs: InputCounts = NO_INPUTS) -> EncoderDecoder:
    """The node model of a configuration."""
    return NodeSettings.of(config, inputs=inputs).node_model(config.data.history, config.data.horizon)


def _server_class(method: Method) -> type[Alternating | Split]:
    of_strategy: type[Alternating | Split] = Alternating if method.strategy == "alternating" else Split
    made = method.server or of_strategy
    if not issubclass(made, of_strategy):
        problem = f"the server of {method.name}, {made.__name__}, is not derived from {of_strategy.__name__}"
        raise ConfigError("method", f"{problem}, as its strategy needs")
    return made


def _share(training: TrainingConfig, method: Method, graph: Graph) -> Share:
    if method.sharing == "neighbours":
        return neighbours(graph, training.fmtl_lambda)
    return average if method.sharing == "average" else keep


def _learner(config: Config, method: Method, compute: Compute) -> GraphLearner | None:
    if not method.graph_network:
        return None
    made = None if method.network is None else partial(method.network, config.model, config.own)
    return GraphLearner(config.model, config.training.server_lr, config.seed, compute, made)
