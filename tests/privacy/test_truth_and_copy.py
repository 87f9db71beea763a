"""Truth and copy are made in one place, and each is made only when it is needed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cnfgnn.config.settings import DataConfig
from cnfgnn.data.readings import Readings
from cnfgnn.privacy.copies import SimulatedCopies
from cnfgnn.privacy.truth_and_copy import READINGS, Blurring, TruthAndCopy
from tests.privacy.two_truths import city
from tests.test_layering import FILES, PACKAGE, imported_names

CLEANING = DataConfig(missing_value=(-5.0,))


def readings_with_code_and_outlier() -> Readings:
    readings = city(seed=1).readings
    values = readings.values.copy()
    values[3, 0], values[7, 1] = -5.0, 1e6
    return replace(readings, values=values)


def test_codes_are_missing_in_both_and_outliers_in_each_by_itself() -> None:
    readings = readings_with_code_and_outlier()
    both = TruthAndCopy(readings, CLEANING, Blurring({READINGS: 1e7}, SimulatedCopies(1)))
    assert both.truth.missing[3, 0]
    assert both.copy.missing[3, 0]
    assert both.truth.missing[7, 1]
    assert not both.copy.missing[7, 1]  # the noise is larger, so nothing stands out in the copy
    np.testing.assert_array_equal(both.observed.missing, both.copy.missing)


def test_without_blur_the_copy_is_the_truth() -> None:
    for blurring in (None, Blurring({}, SimulatedCopies(1))):
        both = TruthAndCopy(readings_with_code_and_outlier(), CLEANING, blurring)
        assert both.copy is both.truth


def test_the_copy_does_not_need_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    both = TruthAndCopy(
        readings_with_code_and_outlier(), CLEANING, Blurring({READINGS: 5.0}, SimulatedCopies(1))
    )
    monkeypatch.setattr(TruthAndCopy, "truth", property(lambda self: pytest.fail("the truth was asked for")))
    assert both.copy.missing[3, 0]


def test_only_one_module_seeks_outliers_in_what_nodes_get() -> None:
    """Whoever masks outliers somewhere else has written the rule a second time."""
    masking = {path for path in FILES if "cnfgnn.data.quality.mask_outliers" in imported_names(path)}
    assert masking == {PACKAGE / "privacy" / "truth_and_copy.py"}
