"""Missing readings are filled, skipped and counted as the treatment says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cnfgnn.data.prepared_series import SUMS, PreparedSeries
from cnfgnn.data.series import Scaler, Series, fill
from cnfgnn.data.windows import Windows
from cnfgnn.runs.scores import Scores

NAN = np.nan
CPU = torch.device("cpu")


def series(rows: list[list[float]], zero_is_missing: bool = True) -> Series:
    values = np.array(rows)
    missing = np.isnan(values) | ((values == 0) & zero_is_missing)
    return Series(values, missing, np.linspace(0, 1, values.shape[1], endpoint=False))


def windows(starts: list[int], history: int = 2, horizon: int = 2) -> Windows:
    part = np.array(starts)
    return Windows({"train": part, "validation": part, "test": part}, history, horizon)


def test_a_gap_is_filled_with_the_last_reading_before_it() -> None:
    values = np.array([[NAN, 1.0, NAN, NAN, 4.0, NAN]])
    expected = np.array([[NAN, 1.0, 1.0, 1.0, 4.0, 4.0]])
    np.testing.assert_array_equal(fill(values, np.isnan(values)), expected)


def test_as_truth_takes_zeros_for_values_and_only_nan_for_gaps() -> None:
    s = series([[10.0, 0.0, NAN, 30.0]])
    data = PreparedSeries(s, Scaler(0.0, 1.0), "as-truth", windows([0]), torch.float64, CPU)
    batch = data.batch("train", torch.tensor([0]))
    assert batch.x[0, 0, :, 0].tolist() == [10.0, 0.0]
    assert batch.y[0, 0].tolist() == [0.0, 30.0]
    assert batch.weight is not None
    assert batch.weight[0, 0].tolist() == [0.0, 1.0]


def test_masked_replaces_zeros_in_the_input_and_skips_them_in_the_loss() -> None:
    s = series([[10.0, 0.0, NAN, 30.0]])
    data = PreparedSeries(s, Scaler(0.0, 1.0), "masked", windows([0]), torch.float64, CPU)
    batch = data.batch("train", torch.tensor([0]))
    assert batch.x[0, 0, :, 0].tolist() == [10.0, 10.0]
    assert batch.weight is not None
    assert batch.weight[0, 0].tolist() == [0.0, 1.0]


def test_before_the_first_reading_stands_the_mean() -> None:
    s = series([[NAN, NAN, 7.0, 9.0]])
    data = PreparedSeries(s, Scaler(5.0, 2.0), "masked", windows([0]), torch.float64, CPU)
    assert data.batch("train", torch.tensor([0])).x[0, 0, :, 0].tolist() == [0.0, 0.0]


def test_the_scale_counts_training_inputs_once_each() -> None:
    s = series([[1.0, 2.0, 3.0, 99.0, 99.0], [5.0, NAN, 0.0, 99.0, 99.0]])
    moments = s.moments(windows([0, 1]), "masked")  # rows 0, 1, 2
    assert moments.tolist() == [[3.0, 6.0, 14.0], [1.0, 5.0, 25.0]]
    as_truth = s.moments(windows([0, 1]), "as-truth")  # NaN is filled with 5 and counted, 0 is a value
    assert as_truth.tolist() == [[3.0, 6.0, 14.0], [3.0, 10.0, 50.0]]


def test_the_scale_is_that_of_all_nodes_together() -> None:
    moments = torch.tensor([[3.0, 6.0, 14.0], [1.0, 6.0, 36.0]])
    scaler = Scaler.of(moments)
    values = np.array([1.0, 2.0, 3.0, 6.0])
    assert scaler.mean == pytest.approx(values.mean())
    assert scaler.std == pytest.approx(values.std())


@pytest.mark.parametrize("moments", [[[4.0, 20.0, 100.0]], [[0.0, 0.0, 0.0]]])
def test_constant_or_absent_readings_do_not_blow_up_the_scale(moments: list[list[float]]) -> None:
    assert Scaler.of(torch.tensor(moments)).std == 1.0


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
def test_the_scale_follows_the_unit_of_the_readings(unit: float) -> None:
    moments = torch.tensor([[3.0, 6.0 * unit, 14.0 * unit**2]], dtype=torch.float64)
    assert Scaler.of(moments).std == pytest.approx((2 / 3) ** 0.5 * unit)


def test_a_node_is_heard_if_it_has_an_observed_input() -> None:
    s = series([[1.0, NAN, NAN, NAN, 5.0, NAN, NAN]])
    w = windows([0, 1, 2, 3])
    assert s.heard(w.starts["train"], w, "masked").tolist() == [[True, False, False, True]]
    assert s.heard(w.starts["train"], w, "as-truth").tolist() == [[True, False, False, True]]
    zeros = series([[1.0, 0.0, 0.0, 4.0, 5.0, 0.0, 0.0]])
    assert zeros.heard(w.starts["train"], w, "masked").tolist() == [[True, False, True, True]]
    assert zeros.heard(w.starts["train"], w, "as-truth").all()


def test_both_kinds_of_errors_are_those_of_a_plain_computation() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(50, 10, (3, 40))
    values[rng.random((3, 40)) < 0.2] = 0.0
    values[rng.random((3, 40)) < 0.1] = np.nan
    s = series(values.tolist())
    w = windows(list(range(30)), 5, 4)
    data = PreparedSeries(s, Scaler(48.0, 9.0), "masked", w, torch.float64, CPU)
    y_hat = torch.from_numpy(rng.normal(0, 1, (3, 30, 4)))
    scores = Scores(data.errors(y_hat, "test", torch.arange(30)))

    rows = np.arange(30)[:, None] + 5 + np.arange(4)
    truth = np.nan_to_num(fill(s.values, np.isnan(s.values)), nan=48.0)[:, rows]
    observed, everything = ~s.missing[:, rows], ~np.isnan(s.values[:, rows])
    error = y_hat.numpy() * 9 + 48 - truth
    overall = scores.overall
    assert overall.rmse == pytest.approx(np.sqrt(np.square(error[everything]).mean()))
    assert overall.mae == pytest.approx(np.abs(error[everything]).mean())
    assert overall.masked_rmse == pytest.approx(np.sqrt(np.square(error[observed]).mean()))
    assert overall.masked_mae == pytest.approx(np.abs(error[observed]).mean())
    assert overall.masked_mape == pytest.approx(
        (np.abs(error) / np.where(truth == 0, 1, truth))[observed].mean()
    )
    third = error[:, :, 2][observed[:, :, 2]]
    assert scores.at(3).masked_mae == pytest.approx(np.abs(third).mean())
    assert scores.per_node[1].mae == pytest.approx(np.abs(error[1][everything[1]]).mean())
    assert len(scores.per_horizon) == 4
    assert scores.sums.shape == (3, 4, len(SUMS))


def test_a_true_zero_counts_in_the_error_but_has_no_percentage() -> None:
    s = series([[1.0, 1.0, 0.0, 2.0]], zero_is_missing=False)
    data = PreparedSeries(s, Scaler(0.0, 1.0), "masked", windows([0]), torch.float64, CPU)
    scores = Scores(data.errors(torch.ones(1, 1, 2).double(), "test", torch.tensor([0])))
    assert scores.overall.masked_mae == 1.0
    assert scores.overall.masked_mape == 0.5


def test_windows_in_a_row_are_cut_as_single_ones_are() -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(50, 9, (3, 40))
    values[rng.random((3, 40)) < 0.1] = np.nan
    made = Series(values, np.isnan(values), np.arange(40) / 288)
    starts = np.arange(30)
    plan = Windows({"train": starts, "validation": starts[:0], "test": starts}, 4, 3)
    data = PreparedSeries(made, Scaler(50.0, 9.0), "masked", plan, torch.float64, CPU)
    in_a_row = data.batch("test", slice(5, 17))
    scattered = data.batch("test", torch.tensor([5, 9, 7, 16]))
    for name in ("x", "y", "weight"):
        whole, some = getattr(in_a_row, name), getattr(scattered, name)
        assert torch.equal(whole[:, [0, 4, 2, 11]], some)
        assert whole.shape[1] == 12
    none = data.batch("test", slice(0, 0))
    assert none.x.shape == (3, 0, 4, 2)
