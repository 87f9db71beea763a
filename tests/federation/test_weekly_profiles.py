"""How a site forecasts with the weekly profiles of its sensors: from its saved states, or without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cnfgnn.algorithm.experiment import federate
from cnfgnn.algorithm.owner import Owner
from cnfgnn.algorithm.store import MemoryStore
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.windows import Windows
from cnfgnn.federation.site.store import OwnerStore, SiteStore
from tests.conftest import network, server, small
from tests.transports.remote.test_transport import GROUPS, Wires, federated

TRAINED, ROWS, AHEAD = 130, 150, 12
SILENT = 2  # a sensor of the new site with few readings
TAG = "round-2"


def cut(data: Dataset, rows: int, ahead: int = 0) -> Dataset:
    """The first rows, followed by some without readings."""
    r = data.readings
    values = r.values[: rows + ahead].copy()
    values[rows:] = np.nan
    times = r.times[: rows + ahead]
    return replace(data, readings=replace(r, times=times, values=values, missing=np.isnan(values)))


def forecasting(folder: Path) -> list[Owner]:
    """Three sites that forecast after training; the second one has no states."""
    whole = network(rows=ROWS + AHEAD, seconds=3600)
    whole.readings.values[: ROWS - AHEAD, SILENT] = np.nan  # it has readings of half a day only
    config = small("cnfgnn-plus", **{"data.history": AHEAD, "data.horizon": AHEAD})
    stores = [SiteStore(folder / f"site-{k}", "run") for k in range(len(GROUPS))]
    wires = Wires(cut(whole, TRAINED), config)
    wires.stores[:] = stores
    wires.owner_stores[:] = [OwnerStore(store.kit, "run") for store in stores]
    kept = federated(wires, wires.transport())
    for r_g in (1, 2):
        server(kept).round(r_g)
    server(kept).save(TAG, ())
    stores[1] = SiteStore(folder / "elsewhere", "run")
    later = Wires(cut(whole, ROWS, AHEAD), config)
    later.stores[:] = stores
    later.owner_stores[:] = [OwnerStore(store.kit, "run") for store in stores]
    transport, windows = later.transport(), Windows.next(ROWS, config.data.history, config.data.horizon)
    store = server(kept).store
    assert isinstance(store, MemoryStore)
    ahead = federate(transport, whole.graph, windows, config, None, "later", store, scaler=kept.scaler)
    server(ahead).restore(TAG, to_learn=False)
    server(ahead).forecast()
    return [later.owner(k) for k in range(len(GROUPS))]


@pytest.mark.slow
def test_a_site_restores_its_weekly_profiles_and_a_new_one_computes_them_from_its_readings(
    tmp_path: Path,
) -> None:
    before, new, other = forecasting(tmp_path)
    for k, owner in ((0, before), (2, other)):
        state = OwnerStore(tmp_path / f"site-{k}", "run").read(TAG)
        weeks = owner.data.weekly_profiles
        np.testing.assert_array_equal(weeks, state["usual_weeks"].numpy())
        counted, _ = owner.truth.weekly_profiles(Windows.next(ROWS, 12, 12), "masked")
        assert not np.allclose(weeks, counted, equal_nan=True)  # newer readings would have changed it

    counted, _ = new.truth.weekly_profiles(Windows.next(ROWS, 12, 12), "masked")
    np.testing.assert_array_equal(new.data.weekly_profiles, counted)
    for owner in (before, new, other):  # all use the shared weights
        assert owner.forecasts is not None
        assert torch.equal(owner.nodes.theta["output.weight"], before.nodes.theta["output.weight"])
        assert torch.isfinite(owner.forecasts).all()


@pytest.mark.slow
def test_an_unknown_profile_predicts_no_change(tmp_path: Path) -> None:
    _, new, _ = forecasting(tmp_path)
    batch = new.data.batch("test", slice(None))
    row = GROUPS[1].index(SILENT)
    assert batch.usual_change is not None
    assert new.data.usual is not None
    unknown = new.data.usual[row, ROWS:].isnan()
    assert unknown.any()
    assert not batch.usual_change[row, 0, 1:][unknown].any()
    assert batch.usual_change[1 - row].count_nonzero() > AHEAD // 2
