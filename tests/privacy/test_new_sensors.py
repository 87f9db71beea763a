"""New sensors of a live site: whatever their true readings are, the nodes get the same at the same moments.

What the nodes need for a sensor that no training knows is computed from the copy, and again when there are
twice as many readings. Neither the moment nor a failure of the owner may depend on true readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from cnfgnn.config.settings import DataConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.readings import Readings, rows_of
from cnfgnn.federation.site.live.predictor import Ready, SitePredictor
from cnfgnn.federation.site.newcomer_fits import FOLDER, State
from cnfgnn.privacy.copies import CopiesOfNewest
from cnfgnn.privacy.truth_and_copy import Blurring
from cnfgnn.runs.simulation import simulate
from cnfgnn.testing.two_truths import HISTORY, HORIZON, TwoTruths, as_bytes, brief
from tests.privacy.two_truths import city

RUN = "one"


@dataclass
class Told:
    """What the nodes were given and the server was told in each step; what the owner made of it."""

    sent: list[tuple[bytes, ...]] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)  # the steps at which the nodes got something new
    forecasts: list[bytes] = field(default_factory=list)
    problems: set[str] = field(default_factory=set)


def told_with(truths: TwoTruths, truth: Dataset, folder: Path) -> Told:
    """Let the last sensor be new, and forecast row after row, from the first ones on."""
    told = Told()
    [(_, owner)] = simulate(truth, truths.config, copies=truths.copies).owners
    nodes, ids = owner.nodes, truth.readings.ids
    found = nodes.forecaster, nodes.theta, owner.data, owner.trust, RUN, ids, 1, nodes.settings
    ready = Ready(*found, "tag", lambda: None, lambda: None)

    def show(copy: Readings, states: Sequence[State]) -> None:
        sent = (copy.values.tobytes(), copy.missing.tobytes(), *map(as_bytes, states))
        if not told.sent or sent[2:] != told.sent[-1][2:-1]:
            told.computed.append(len(copy.times))
        told.sent.append(sent)

    predictor = SitePredictor(
        ids,
        ready,
        DataConfig(),
        Blurring.of(truths.config, CopiesOfNewest(truths.copies)),
        show,
        lambda what, error: told.problems.add(what) if error else None,
        folder,
    )
    for rows in range(HISTORY + 1, len(truth.readings.times) + 1):
        before = len(told.sent)
        forecast = predictor.forecast(rows_of(truth.readings, slice(0, rows)))
        assert len(told.sent) == before + 1, f"nothing was told in step {rows}"
        told.sent[-1] += (repr(predictor.wait_until_due(0)).encode(),)
        told.forecasts.append(forecast.tobytes())
    return told


@pytest.fixture
def truths(tmp_path: Path, request: pytest.FixtureRequest) -> TwoTruths:
    return TwoTruths.of(tmp_path / "copies", brief("cnfgnn-private"), city(seed=1), request.param)


@pytest.mark.parametrize(
    "truths",
    [
        ("plain", "peaks"),
        pytest.param(("huge", "constant"), marks=pytest.mark.slow),
        pytest.param(("noisy", "zeros"), marks=pytest.mark.slow),
    ],
    indirect=True,
)
def test_what_is_computed_for_new_sensors_and_when_follows_from_the_copy(
    truths: TwoTruths, tmp_path: Path
) -> None:
    one, other = (told_with(truths, truth, tmp_path / name) for truth, name in zip(truths, "ab", strict=True))
    assert one.sent == other.sent
    readings = np.cumsum(~truths.one.readings.missing[:, -1])
    least = HISTORY + HORIZON
    assert [int(readings[step - 1]) for step in one.computed[1:]] == [least, 2 * least, 4 * least, 8 * least]
    assert one.forecasts != other.forecasts


@pytest.mark.slow
@pytest.mark.parametrize("truths", [("plain", "peaks")], indirect=True)
@pytest.mark.parametrize("who", ["nodes", "owner"])
def test_what_was_computed_for_a_new_sensor_is_computed_again_if_its_file_is_damaged(
    who: str, truths: TwoTruths, tmp_path: Path
) -> None:
    before = told_with(truths, truths.one, tmp_path)
    [file] = (tmp_path / FOLDER / RUN / who).rglob("*.safetensors")
    file.write_bytes(b"damaged")
    again = told_with(truths, truths.one, tmp_path)
    assert again.problems == set()
    assert again.forecasts[-1] == before.forecasts[-1]


@pytest.mark.slow
@pytest.mark.parametrize("truths", [("plain", "peaks")], indirect=True)
def test_nobody_notices_that_an_owner_cannot_keep_what_it_computed_for_a_new_sensor(
    truths: TwoTruths, tmp_path: Path
) -> None:
    place = tmp_path / "b" / FOLDER / RUN / "owner"
    place.parent.mkdir(parents=True)
    place.write_text("a file where a folder should be")
    one, other = (told_with(truths, truth, tmp_path / name) for truth, name in zip(truths, "ab", strict=True))
    assert one.sent == other.sent
    assert (one.problems, other.problems) == (set(), {"new sensors"})
