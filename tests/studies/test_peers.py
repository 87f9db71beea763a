"""Other people's models are trained and judged as ours are, whichever model it is; tsl is not needed here."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from experiments.peers import peers
from torch import Tensor, nn

import cnfgnn
from cnfgnn.config.settings import DataConfig, Missing
from cnfgnn.data.batch import Batch
from cnfgnn.runs.baselines import Prepared
from cnfgnn.runs.record import write_json
from studies import docs_tables

DATA = cnfgnn.city(sensors=3, days=2, dropout=0.2)
PEER = replace(peers.PEERS["stid"], name="Stand-in", lr=0.05, epochs=3, milestones=(), clip=5.0)


class StandIn(nn.Module):
    """The last reading, times and plus something that is learned."""

    def __init__(self, factor: float = 0.5) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))
        self.shift = nn.Parameter(torch.zeros(12))

    def forward(self, batch: Batch) -> Tensor:
        return batch.x[:, :, -1:, 0] * self.factor + self.shift


class WorseWithEachStep(StandIn):
    """Its errors rise from epoch to epoch."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, batch: Batch) -> Tensor:
        self.steps += self.training
        return super().forward(batch) + 10 * self.steps


def trained(model: nn.Module, peer: peers.Peer = PEER, **options: object) -> peers.Trained:
    prepared = peers.prepare(DATA, DataConfig(), torch.device("cpu"))
    return peers.train(model, prepared, peer, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", ["masked", "as-truth"])
def test_forecasts_are_judged_as_those_of_our_methods(missing: Missing) -> None:
    config = DataConfig(missing=missing)
    model = StandIn()
    found = peers.train(model, peers.prepare(DATA, config, torch.device("cpu")), PEER)
    assert model.factor.item() > 0.6  # it learned
    model.double()
    ours = Prepared.of(DATA, config).evaluate("test", lambda part, w: model(part.data.batch("test", w)))
    for error, value in vars(ours.overall).items():
        assert getattr(found.scores.overall, error) == pytest.approx(value, rel=1e-5), error
    counted, expected = (scores.per_sensor(masked=False)[:, 1] for scores in (found.scores, ours))
    assert counted.tolist() == expected.tolist()


def test_the_loss_is_the_mean_error_of_observed_targets_in_their_unit() -> None:
    """As published: the clip and Adam's epsilon depend on the unit."""
    prepared = peers.prepare(DATA, DataConfig(), torch.device("cpu"))
    model = StandIn()
    whole = replace(PEER, epochs=1, batch=len(prepared.starts["train"]), clip=float("inf"))
    peers.train(model, prepared, whole)
    expected = StandIn()
    batch = prepared.batch("train", slice(None))
    truth, observed = prepared.truth("train", slice(None))
    error = (prepared.unscaled(expected(batch)) - truth).abs()[observed].mean()
    wanted = torch.autograd.grad(error, list(expected.parameters()))
    for weight, gradient in zip(model.parameters(), wanted, strict=True):
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad.double(), gradient.double(), rtol=1e-4, atol=1e-5)


def test_the_epoch_with_the_lowest_validation_error_counts_and_patience_ends_training() -> None:
    model = WorseWithEachStep()
    found = trained(model, replace(PEER, lr=0.0, epochs=9, patience=2))
    assert (found.best, found.epochs, found.cut_off) == (1, 3, None)
    prepared = peers.prepare(DATA, DataConfig(), torch.device("cpu"))
    assert model.steps.item() == -(-len(prepared.starts["train"]) // PEER.batch)  # of one epoch
    assert peers.evaluate(model, prepared, "test").overall == found.scores.overall


def test_what_was_cut_off_says_so_in_its_record_and_in_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = trained(StandIn(), seconds=0.0)
    assert (found.epochs, found.cut_off) == (1, 0.0)
    monkeypatch.setattr(docs_tables, "RECORDS", tmp_path)
    write_json(tmp_path / "peers" / "a.json", peers.record(PEER, DATA, found, {}, seed=1))
    write_json(tmp_path / "peers" / "b.json", peers.record(PEER, DATA, trained(StandIn()), {}, seed=1))
    table = docs_tables.records("peers", "masked_mae")
    assert not isinstance(table, str)
    assert [row["method"] for row in table.rows] == [
        "Stand-in, pooled, cut off after = 0 s",
        "Stand-in, pooled",
    ]


def test_without_the_package_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["peers.py", "stid", "nowhere", "nowhere"])
    with pytest.raises(SystemExit, match=r"not installed: see experiments/peers/README\.md"):
        peers.main()


def test_trainings_with_other_settings_have_other_files() -> None:
    names = {
        peers.file_name("lake", "stid", missing, loss, seed)
        for missing in ("masked", "as-truth")
        for loss in ("absolute", "square")
        for seed in (1, 2)
    }
    assert len(names) == 8
    assert "lake-stid-as-truth-square-2.json" in names
