"""The simulator: all nodes on one machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.aggregation import each_neighbour
from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.experiment import Experiment, federate, pool
from cnfgnn.algorithm.methods import check_method
from cnfgnn.algorithm.owner import Owner
from cnfgnn.algorithm.server import Server
from cnfgnn.algorithm.store import MemoryStore, SiteMemoryStore, Store
from cnfgnn.config.presets import BLUR, PRIVATE
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.inputs import InputCounts, InputNames, used_inputs
from cnfgnn.data.readings import Readings
from cnfgnn.data.series import Scaler, Series
from cnfgnn.data.windows import Windows
from cnfgnn.errors import ConfigError, DataError
from cnfgnn.privacy.copies import Copies
from cnfgnn.privacy.inputs import INPUT_BLURS, check_input_blurs, read_input_blurs
from cnfgnn.privacy.truth_and_copy import Blurring, TruthAndCopy
from cnfgnn.transports.in_process import InProcess

HOW_TO_CHOOSE = (
    f"{PRIVATE} needs it, in the readings' unit. A sixteenth of the range that such a sensor can show is a"
    " start (0 to 80 mph: 5 mph); quantities that change slowly need more, and cnfgnn privacy --data says how"
    " much"
)


def simulate(
    data: Dataset,
    config: Config,
    groups: Sequence[Sequence[int]] | None = None,
    store: Callable[[str], Store] = lambda name: MemoryStore() if name == "server" else SiteMemoryStore(),
    tick: Callable[[], None] = lambda: None,
    windows: Windows | None = None,
    scaler: Scaler | None = None,
    copies: Copies | None = None,
    tells: bool = True,
    kept_scaler: Scaler | None = None,
) -> Experiment:
    """Set up `config.method` on a data set, ready for its first round.

    groups   which rows share a Clients object (default: all); the result does not depend on it
    store    returns the store in which a party (server, site-0, owner-0 ...) saves its checkpoints
    tick     called at every minibatch
    windows  other windows than those of `config`
    scaler   the scale of a trained model; without it, the scale is computed from the readings
    copies   where blurred copies come from; without it, they are drawn with a key that follows from the seed
    tells    whether owners add the sums of true errors to their scores
    kept_scaler  the scale of the training that a new one goes on from

    Inductive training puts seen and unseen nodes into separate groups.
    """
    method = check_method(config)
    if method.name == PRIVATE and config.privacy.blur == 0 and scaler is None:
        raise ConfigError(BLUR, HOW_TO_CHOOSE)
    inputs = InputCounts.of(used_inputs(data.readings, config).others)
    seen = seen_sensors(data, config.training.seen)
    rows = _grouped(groups, seen, len(data.readings.ids))
    if not method.federated and len(rows) > 1:
        raise ConfigError("method", f"{method.name} pools all readings and cannot run on separate groups")
    owners = _owners(data.readings, config, rows, store, tick, copies, tells)
    transport = InProcess(owners)
    if windows is None:
        d = config.data
        windows = Windows.of(len(data.readings.times), d.history, d.horizon, d.shares, data.readings.source)
    graph = data.graph if config.graph.direction == "files" else data.graph.reversed()
    if not method.federated:
        parties = (transport, owners, graph, windows, config, data.name, store("server"))
        return pool(*parties, scaler, inputs, kept_scaler)
    network = (transport, graph, windows, config, seen, data.name, store("server"), tick, scaler)
    experiment = federate(*network, inputs=inputs, kept_scaler=kept_scaler)
    if method.sharing == "neighbours" and config.training.fmtl_norm == "plain":
        if len(owners) > 1:
            raise ConfigError("training.fmtl_norm", "plain needs all nodes in one group", ["squared"])
        assert isinstance(experiment.strategy, Server)
        [(order, owner)] = owners
        experiment.strategy.share = each_neighbour(graph, config.training.fmtl_lambda, order, owner.nodes)
    return replace(experiment, owners=owners)


def _owners(
    readings: Readings,
    config: Config,
    rows: Sequence[np.ndarray],
    store: Callable[[str], Store],
    tick: Callable[[], None],
    copies: Copies | None,
    tells: bool,
) -> list[tuple[Tensor, Owner]]:
    """The owner of each group of rows, and these rows."""
    truth, copy = truth_and_copy(used_inputs(readings, config), config, copies)
    compute = Compute.of(config.compute)
    owners = []
    for k, group in enumerate(rows):
        series = Series.of(copy, group)
        own_series = series if copy is truth else Series.of(truth, group)
        nodes = Clients(series, compute, store(f"site-{k}"), f"site-{k}", tick)
        owners.append((torch.from_numpy(group), Owner(nodes, own_series, store(f"owner-{k}"), tells)))
    return owners


def truth_and_copy(
    readings: Readings, config: Config, copies: Copies | None = None
) -> tuple[Readings, Readings]:
    """The readings that owners use, and their blurred copy; the same object if nothing is blurred."""
    if config.model.takes_inputs:
        blurs = read_input_blurs(config.privacy.inputs)
        check_input_blurs(readings.others, blurs, config.privacy.blur > 0, lambda name: INPUT_BLURS)
    both = TruthAndCopy(readings, config.data, Blurring.of(config, copies))
    return both.truth, both.copy


def unused_inputs(readings: Readings, config: Config) -> str:
    """What a user should know if the method ignores further inputs; empty if it does not."""
    if config.model.takes_inputs or not readings.others:
        return ""
    return (
        f"{config.method} forecasts from the readings alone and ignores {InputNames.of(readings.others)};"
        " cnfgnn-plus uses them"
    )


def seen_sensors(data: Dataset, share: float) -> Tensor | None:
    """(n,) bool: the first sensors by longitude, which train; the others are only evaluated (paper, section
    4.2).

    None if all sensors train.
    """
    if share == 1:
        return None
    positions = data.readings.positions
    if positions is None:
        problem = "inductive training sorts sensors by longitude, but they have no positions"
        files = "graph_sensor_locations.csv to a traffic file, or sensors.csv to a folder"
        raise DataError(data.name, f"{problem}: add {files} (id, latitude, longitude)")
    order = np.argsort(positions[:, 1], kind="stable")
    seen = torch.zeros(len(order), dtype=torch.bool)
    seen[torch.from_numpy(order[: max(1, int(len(order) * share))])] = True
    return seen


def _grouped(groups: Sequence[Sequence[int]] | None, seen: Tensor | None, n: int) -> list[np.ndarray]:
    """The rows of each group, split so that no group has both seen and unseen nodes."""
    rows = [np.arange(n)] if groups is None else [np.asarray(group, dtype=np.int64) for group in groups]
    if seen is None:
        return [group for group in rows if len(group)]
    split = []
    for group in rows:
        is_seen = seen.numpy()[group]
        split += [group[is_seen], group[~is_seen]]
    return [group for group in split if len(group)]
