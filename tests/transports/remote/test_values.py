"""Weights that nobody can believe are named with their site; windows come in order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.transports.remote.schema import Refused
from cnfgnn.transports.remote.values import check_call_values, norm, too_large


def theta(scale: float, n: int = 2, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {"a": torch.full((n, 3), scale, dtype=dtype), "b": torch.full((n, 1), scale, dtype=dtype)}


def test_the_norm_is_that_of_the_largest_model() -> None:
    weights = theta(1.0)
    weights["a"][1] = 2.0
    assert norm(weights) == pytest.approx(13**0.5)
    assert norm({}) == 0


@pytest.mark.parametrize("scale", [1e3, -1e3, 1e38, 1e300])
def test_weights_a_thousand_times_too_large_are_refused(scale: float) -> None:
    bad = theta(scale, dtype=torch.float64)
    assert list(too_large({"a": norm(theta(1)), "b": norm(bad)}, known=2.0)) == ["b"]
    reasons = too_large({"a": norm(theta(1)), "b": norm(bad), "c": norm(theta(0.9))})
    assert list(reasons) == ["b"]
    assert reasons["b"].startswith("its weights are ")
    assert too_large({"a": norm(theta(1)), "b": norm(theta(90)), "c": norm(theta(0.95))}) == {}


def test_one_poisoned_node_among_many_is_seen() -> None:
    many = theta(1.0, n=50)
    many["b"][37] = 1e5
    assert list(too_large({"a": norm(many)}, known=2.0)) == ["a"]


def test_of_two_sites_nobody_can_say_which_to_believe() -> None:
    assert too_large({"a": norm(theta(1)), "b": norm(theta(1e6))}) == {}


def test_a_tiny_site_does_not_put_the_others_in_the_wrong() -> None:
    assert too_large({"a": norm(theta(1)), "b": norm(theta(1e-12)), "c": norm(theta(1))}) == {}
    assert too_large({"a": norm(theta(1)), "b": norm(theta(1e-12))}, known=2.0) == {}


@pytest.mark.parametrize("starts", [[-1, 0], [3, 2], [2, 2]])
def test_windows_come_in_order(starts: list[int]) -> None:
    fine = {split: torch.arange(3)[None] for split in ("train", "validation", "test")}
    check_call_values([Call("prepare", {}, fine), Call("weights")])
    with pytest.raises(Refused, match="test windows are not in order"):
        check_call_values([Call("prepare", {}, {**fine, "test": torch.tensor([starts])})])
