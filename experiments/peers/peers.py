"""Train a published model on pooled readings, by other people's code, and leave a record as our runs do.

    python experiments/peers/peers.py graph-wavenet metr-la-29 experiments/records/peers --seed 1

The models are those of torch-spatiotemporal (`tsl`); README.md says how to install it. Readings, windows,
scale and errors are cnfgnn's own, so the figures stand beside those of our methods. The epoch with the lowest
validation error is evaluated, whatever the model.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from cnfgnn.algorithm.compute.cuda_graphs import RecordingPool, Replay
from cnfgnn.config.settings import DataConfig, Loss
from cnfgnn.data.batch import Batch
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.folder import load
from cnfgnn.data.graph import Graph
from cnfgnn.data.prepared_series import PreparedSeries
from cnfgnn.data.windows import Split, check_splits
from cnfgnn.errors import CnfgnnError
from cnfgnn.forecasters.weekly_profile import SLOTS
from cnfgnn.runs.baselines import Prepared
from cnfgnn.runs.record import about, write_json
from cnfgnn.runs.scores import Scores

AT_ONCE = 1024  # windows in a forward pass without gradients: bounds memory
PACKAGES = ("torch-spatiotemporal", "torch_geometric")


@dataclass(frozen=True)
class Peer:
    """A model with its published settings.

    model       its class in tsl.nn.models
    sizes       arguments of that class
    inputs      how many of these: reading and time of day of each step, day of the week of the last one
    embeds      whether it looks up embeddings of the time of day and the day of the week
    graph       whether it uses the graph of the files
    clip        largest norm of the gradient
    milestones  epochs after which the learning rate is multiplied by gamma
    patience    epochs without a lower validation error after which training ends
    """

    name: str
    model: str
    sizes: Mapping[str, Any]
    inputs: int
    lr: float
    epochs: int
    weight_decay: float = 0.0
    eps: float = 1e-8
    clip: float = float("inf")
    milestones: Sequence[int] = ()
    gamma: float = 1.0
    patience: int | None = None
    batch: int = 64
    graph: bool = False
    embeds: bool = False


PEERS = {
    # Wu et al., IJCAI 2019; train.py and model.py of nnzhan/Graph-WaveNet with --gcn_bool --adjtype
    # doubletransition --addaptadj --randomadj: 4 blocks of 2 layers, 32 channels, 256 in skip connections,
    # 512 at the end, embeddings of 10, diffusion of order 2, dropout 0.3; Adam, 0.001, weight decay 0.0001,
    # batches of 64, 100 epochs, clip 5, masked MAE in mph.
    "graph-wavenet": Peer(
        name="Graph WaveNet",
        model="GraphWaveNetModel",
        sizes={
            "hidden_size": 32,
            "ff_size": 256,
            "n_layers": 8,
            "temporal_kernel_size": 2,
            "spatial_kernel_size": 2,
            "dilation": 2,
            "dilation_mod": 2,
            "emb_size": 10,
            "learned_adjacency": True,
            "norm": "batch",
            "dropout": 0.3,
        },
        inputs=2,
        lr=0.001,
        weight_decay=0.0001,
        epochs=100,
        clip=5.0,
        graph=True,
    ),
    # Li et al., ICLR 2018; dcrnn_la.yaml and dcrnn_bay.yaml of liyaguang/DCRNN: 2 layers of 64 units,
    # diffusion of order 2 in both directions; Adam, 0.01 (a tenth after 20, 30, 40 and 50 epochs, not below
    # 2e-6, which is left out here), epsilon 0.001, batches of 64, 100 epochs, patience 50, clip 5, masked
    # MAE. tsl has a perceptron in place of the recurrent decoder and its scheduled sampling; its width of 128
    # is that of tsl's own example.
    "dcrnn": Peer(
        name="DCRNN",
        model="DCRNNModel",
        sizes={"hidden_size": 64, "n_layers": 2, "kernel_size": 2, "ff_size": 128, "dropout": 0.0},
        inputs=2,
        lr=0.01,
        eps=0.001,
        milestones=(20, 30, 40, 50),
        gamma=0.1,
        epochs=100,
        patience=50,
        clip=5.0,
        graph=True,
    ),
    # Bai et al., NeurIPS 2020; PEMSD4_AGCRN.conf of LeiBAI/AGCRN (there is none for speeds): 2 layers of 64
    # units, embeddings of 10, the reading as its only input; Adam, 0.003, batches of 64, 100 epochs, patience
    # 15, no clip, MAE. The graph is learned.
    "agcrn": Peer(
        name="AGCRN",
        model="AGCRNModel",
        sizes={"hidden_size": 64, "emb_size": 10, "n_layers": 2},
        inputs=1,
        lr=0.003,
        epochs=100,
        patience=15,
    ),
    # Shao et al., CIKM 2022; stid/METR-LA.py and PEMS-BAY.py of GestaltCogTeam/STID at 73c579e: 3 layers,
    # embeddings of 32, dropout 0.15; Adam, 0.002 (halved after 1, 50 and 80 epochs), weight decay 0.0001,
    # batches of 64, 100 epochs, clip 5, masked MAE. No graph.
    "stid": Peer(
        name="STID",
        model="STIDModel",
        sizes={"hidden_size": 32, "n_layers": 3, "dropout": 0.15, "n_exog_emb": [SLOTS, 7]},
        inputs=3,
        lr=0.002,
        weight_decay=0.0001,
        milestones=(1, 50, 80),
        gamma=0.5,
        epochs=100,
        clip=5.0,
        embeds=True,
    ),
}


# ---- the models -----------------------------------------------------------------------------------------


class Placeholder(ModuleType):
    """A module that is not installed, whose names stand in annotations and are never called."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@functools.cache
def tsl_models() -> ModuleType:
    """tsl.nn.models, without the compiled packages that it imports for other things."""
    _stand_in("scipy", "scipy.sparse", "psutil")
    importlib.import_module("torch_geometric")  # now: it would use the next two if it found them
    _stand_in("torch_scatter", "torch_scatter.utils", "torch_sparse")
    # TorchScript would compile functions that no model here calls, with what they call.
    with patch.object(torch.jit, "script", lambda function: function):
        return importlib.import_module("tsl.nn.models")


def _stand_in(*names: str) -> None:
    for name in [name for name in names if find_spec(name.partition(".")[0]) is None]:
        sys.modules[name] = Placeholder(name)


class Forecaster(nn.Module):
    """A model of tsl that takes our batches."""

    def __init__(self, peer: Peer, graph: Graph, windows: tuple[int, int]) -> None:
        super().__init__()
        history, horizon = windows
        model = getattr(tsl_models(), peer.model)
        sizes = {"input_size": peer.inputs, "output_size": 1, "n_nodes": graph.nodes, **peer.sizes}
        sizes |= {"window": history, "horizon": horizon}
        model.filter_model_args_(sizes)  # not every model has all of these
        self.net = model(**sizes)
        self.peer, self.nodes = peer, graph.nodes
        self.register_buffer("edges", torch.tensor([graph.senders.tolist(), graph.receivers.tolist()]))
        self.register_buffer("weights", torch.tensor(graph.weights, dtype=torch.float32))

    def forward(self, batch: Batch) -> Tensor:
        """Scaled forecasts (n b t)."""
        x = batch.x.permute(1, 2, 0, 3)  # (b t n d)
        others: tuple[Tensor, ...] = (self.edges, self.weights) if self.peer.graph else ()
        assert batch.moment is not None
        if self.peer.inputs == 3:
            weekday = batch.moment[:, 1].to(x.dtype).view(-1, 1, 1, 1) / 7
            x = torch.cat([x, weekday.expand_as(x[..., :1])], dim=-1)
        if self.peer.embeds:
            others = (batch.moment,)
        y_hat: Tensor = self.net(x[..., : self.peer.inputs], *others)  # (b t n 1)
        return y_hat.squeeze(-1).permute(2, 0, 1)

    def multiply_densely(self) -> None:
        """Send along edges by products with small dense matrices: the same sums, from far fewer kernels."""
        from tsl.nn.layers.graph_convs import DiffConv
        from tsl.ops.connectivity import edge_index_to_adj

        for conv in self.net.modules():
            if isinstance(conv, DiffConv):
                support = conv.compute_support_index(self.edges, self.weights, num_nodes=self.nodes)
                conv._support = [(edge_index_to_adj(*edges, num_nodes=self.nodes), None) for edges in support]
                conv.propagate = lambda matrix, x, weight: matrix @ x


# ---- training -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """The test errors of the best epoch, how many epochs there were, and the seconds after which they were
    cut off, if they were."""

    scores: Scores
    best: int
    epochs: int
    seconds: float
    cut_off: float | None


def prepare(data: Dataset, config: DataConfig, device: torch.device) -> PreparedSeries:
    """The windows and the scale that all methods have, on the device."""
    found = Prepared.of(data, config)
    check_splits(found.windows, config.shares, data.name)
    scaler = found.data.scaler
    return PreparedSeries(found.series, scaler, config.missing, found.windows, torch.float32, device)


def evaluate(model: nn.Module, data: PreparedSeries, split: Split) -> Scores:
    """The errors of a split, over every observed target."""
    model.eval()
    sums = []
    with torch.no_grad():
        for first in range(0, len(data.starts[split]), AT_ONCE):
            chunk = slice(first, min(first + AT_ONCE, len(data.starts[split])))
            sums.append(data.errors(model(data.batch(split, chunk)), split, chunk))
    return Scores(torch.stack(sums).sum(0).cpu())


def train(
    model: nn.Module,
    data: PreparedSeries,
    peer: Peer,
    loss: Loss = "absolute",
    seed: int = 1,
    seconds: float | None = None,
    recorded: bool = True,
) -> Trained:
    """Train to the last epoch, or as many epochs as fit into so many seconds, but at least one. On a GPU a
    step is recorded once and replayed, because launching its kernels takes longer than running them."""
    device, count = data.inputs.device, len(data.starts["train"])
    step, schedule = _steps(model, data, peer, loss, recorded)
    order = torch.Generator().manual_seed(seed)
    begun, longest, lowest, best, epoch = time.perf_counter(), 0.0, float("inf"), 0, 0
    kept: dict[str, Tensor] = {}
    cut_off = None
    for epoch in range(1, peer.epochs + 1):
        started = time.perf_counter()
        model.train()
        for windows in torch.randperm(count, generator=order).to(device).split(peer.batch):
            step(windows)
        schedule.step()
        error = evaluate(model, data, "validation").loss(data.masked, loss)
        if error < lowest:
            lowest, best, kept = error, epoch, copy.deepcopy(model.state_dict())
        elapsed = time.perf_counter() - begun
        longest = max(longest, time.perf_counter() - started)
        print(f"{peer.name} {epoch}: validation {error:.4f}, {elapsed:.0f} s", flush=True)
        if peer.patience is not None and epoch - best >= peer.patience:
            break
        if epoch < peer.epochs and seconds is not None and elapsed + longest > seconds:
            cut_off = seconds
            break
    if not kept:
        sys.exit(f"{peer.name} diverged: its validation error was never a number")
    model.load_state_dict(kept)
    took = time.perf_counter() - begun
    return Trained(evaluate(model, data, "test"), best, epoch, took, cut_off)


def _steps(
    model: nn.Module, data: PreparedSeries, peer: Peer, loss: Loss, recorded: bool
) -> tuple[Replay, torch.optim.lr_scheduler.MultiStepLR]:
    """What learns from some windows, and the schedule of its rate."""
    device, weights = data.inputs.device, list(model.parameters())
    on_gpu = device.type == "cuda"
    optimiser = torch.optim.Adam(
        weights,
        torch.tensor(peer.lr, device=device) if on_gpu else peer.lr,
        eps=peer.eps,
        weight_decay=peer.weight_decay,
        capturable=on_gpu,
    )

    def learn(windows: Tensor) -> None:
        batch = data.batch("train", windows)
        error = (model(batch) - batch.y) * data.scaler.std  # in the readings' unit, for clip and epsilon
        error = error.square() if loss == "square" else error.abs()
        mean = (error * batch.observed).sum() / batch.observed.sum().clamp(min=1)
        gradients = torch.autograd.grad(mean, weights, allow_unused=True)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        nn.utils.clip_grad_norm_(weights, peer.clip)
        optimiser.step()

    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, list(peer.milestones), peer.gamma)
    return Replay(learn, RecordingPool(device if recorded else torch.device("cpu"))), schedule


# ---- the record -----------------------------------------------------------------------------------------


def record(
    peer: Peer, data: Dataset, trained: Trained, settings: Mapping[str, Any], seed: int, **more: Any
) -> dict[str, Any]:
    """In the form of `record.json`; tables show settings, so they say what was cut off."""
    cut_off = {} if trained.cut_off is None else {"cut off after": f"{trained.cut_off:g} s"}
    return {
        "method": f"{peer.name}, pooled",
        "settings": {**settings, **cut_off},
        "seed": seed,
        **about(data.name, data.readings),
        "errors": trained.scores.summary(),
        "bytes": None,
        "rounds": {"best": trained.best, "all": trained.epochs, "planned": peer.epochs},
        "seconds": round(trained.seconds, 1),
        **more,
    }


def file_name(data: str, model: str, missing: str, loss: str, seed: int) -> str:
    """Trainings that differ in any of these have different files."""
    told = [part for part in (missing, loss) if part not in ("masked", "absolute")]
    return "-".join([data, model, *told, str(seed)]) + ".json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", choices=PEERS)
    parser.add_argument("data", type=Path, help="a file or folder that cnfgnn reads")
    parser.add_argument(
        "out",
        type=Path,
        help="folder for the record: DATA-MODEL-SEED.json, or DATA-MODEL-as-truth-square-SEED.json",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, help="fewer or more than published")
    parser.add_argument("--seconds", type=float, help="end training before the epoch that would exceed them")
    parser.add_argument(
        "--missing",
        choices=("masked", "as-truth"),
        default="masked",
        help="whether missing readings are left out, or count as the file has them (data.missing)",
    )
    parser.add_argument(
        "--loss",
        choices=("absolute", "square"),
        default="absolute",
        help="errors to train on (training.loss)",
    )
    parser.add_argument("--eager", action="store_true", help="do not record steps on a GPU")
    given = parser.parse_args()
    if find_spec("tsl") is None or find_spec("torch_geometric") is None:
        sys.exit("torch-spatiotemporal is not installed: see experiments/peers/README.md")
    try:
        _run(given)
    except CnfgnnError as problem:
        sys.exit(str(problem))


def _run(given: argparse.Namespace) -> None:
    peer = PEERS[given.model]
    settings = {"compute.precision": "tf32", "training.loss": given.loss, "data.missing": given.missing}
    if given.epochs is not None:
        peer = replace(peer, epochs=given.epochs)
        settings["epochs"] = given.epochs
    torch.set_float32_matmul_precision("high")  # tf32, as our own runs
    torch.manual_seed(given.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data, config = load(given.data), DataConfig(missing=given.missing)
    prepared = prepare(data, config, device)
    model = Forecaster(peer, data.graph, (config.history, config.horizon)).to(device)
    model.multiply_densely()
    trained = train(model, prepared, peer, given.loss, given.seed, given.seconds, not given.eager)
    found = record(
        peer,
        data,
        trained,
        settings,
        given.seed,
        parameters=sum(weight.numel() for weight in model.parameters()),
        packages={name: version(name) for name in PACKAGES},
    )
    write_json(given.out / file_name(data.name, given.model, given.missing, given.loss, given.seed), found)
    errors = trained.scores.overall
    print(f"{peer.name}: masked MAE {errors.masked_mae:.3f}, masked RMSE {errors.masked_rmse:.3f}")


if __name__ == "__main__":
    main()
