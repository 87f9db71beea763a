"""The simulator: all nodes on one machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.compute import Compute
from cnfgnn.algorithm.experiment import Experiment, federate, pool
from cnfgnn.algorithm.methods import check_method
from cnfgnn.algorithm.store import MemoryStore, SiteMemoryStore, Store
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.quality import clean_dataset
from cnfgnn.data.series import Scaler, Series
from cnfgnn.data.windows import Windows
from cnfgnn.errors import ConfigError, DataError
from cnfgnn.transports.in_process import InProcess


def simulate(
    data: Dataset,
    config: Config,
    groups: Sequence[Sequence[int]] | None = None,
    store: Callable[[str], Store] = lambda name: MemoryStore() if name == "server" else SiteMemoryStore(),
    tick: Callable[[], None] = lambda: None,
    windows: Windows | None = None,
    scaler: Scaler | None = None,
) -> Experiment:
    """Set up `config.method` on a data set, ready for its first round.

    groups   which rows share a Clients object (default: all); the result does not depend on it
    store    returns the store in which an owner (server, site-0 ...) saves its checkpoints
    tick     called at every minibatch
    windows  other windows than those of `config`
    scaler   the scale of a trained model; without it, the scale is computed from the readings

    Inductive training puts seen and unseen nodes into separate groups.
    """
    method = check_method(config)
    data = clean_dataset(data, config.data)
    compute = Compute.of(config.compute)
    seen = seen_sensors(data, config.training.seen)
    rows = _grouped(groups, seen, len(data.readings.ids))
    if not method.federated and len(rows) > 1:
        raise ConfigError("method", f"{method.name} pools all readings and cannot run on separate groups")
    owners = []
    for k, group in enumerate(rows):
        clients = Clients(Series.of(data.readings, group), compute, store(f"site-{k}"), f"site-{k}", tick)
        owners.append((torch.from_numpy(group), clients))
    transport = InProcess(owners)
    if windows is None:
        d = config.data
        windows = Windows.of(len(data.readings.times), d.history, d.horizon, d.shares, data.readings.source)
    graph = data.graph if config.graph.direction == "files" else data.graph.reversed()
    if method.federated:
        server = store("server")
        all_nodes = owners[0] if len(owners) == 1 else None
        experiment = federate(
            transport, graph, windows, config, seen, data.name, server, tick, scaler, all_nodes
        )
        return replace(experiment, owners=owners)
    return pool(transport, owners, graph, windows, config, data.name, store("server"), scaler)


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
        raise DataError(data.name, f"{problem}: add sensors.csv (id, latitude, longitude)")
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
