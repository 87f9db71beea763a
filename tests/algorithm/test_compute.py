"""Where and how a party computes."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cnfgnn.algorithm.compute import device as compute
from cnfgnn.algorithm.compute.device import Compute, multiplies_bf16
from cnfgnn.config.settings import ComputeConfig, Precision
from cnfgnn.errors import ConfigError


def test_precisions_are_types_and_products() -> None:
    made = {p: Compute.of(ComputeConfig("cpu", p)) for p in ("fp32", "tf32", "bf16", "fp64")}
    assert [made[p].dtype for p in made] == [torch.float32] * 3 + [torch.float64]
    assert [made[p].bf16 for p in made] == [False, False, multiplies_bf16(), False]
    with Compute(torch.device("cpu"), bf16=True).autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A processor that says of itself what the test wants to hear."""

    def be(machine: str, usable: bool, avx512_bf16: bool = False, amx_tile: bool = False) -> None:
        compute._warn_once.cache_clear()
        monkeypatch.setattr(platform, "machine", lambda: machine)
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: usable)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx_tile)

    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    return be


def test_a_processor_without_bf16_computes_in_fp32_and_says_so_once(
    pretend: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    pretend("aarch64", usable=False)
    for _ in range(2):
        assert not Compute.of(ComputeConfig("cpu", "bf16")).bf16
    assert [record.getMessage() for record in caplog.records] == [
        "compute.precision=bf16: this processor has no bf16 instructions, so products run in fp32"
    ]
    caplog.clear()
    Compute.of(ComputeConfig("cpu", "fp32"))
    assert not caplog.records


@pytest.mark.parametrize(
    ("processor", "has"),
    [
        ({"machine": "aarch64", "usable": True}, True),  # Neoverse V1
        ({"machine": "aarch64", "usable": False}, False),  # Neoverse N1
        ({"machine": "x86_64", "usable": False}, False),  # without AVX-512
        ({"machine": "x86_64", "usable": True}, False),  # AVX-512 alone: bf16 is emulated
        ({"machine": "x86_64", "usable": True, "avx512_bf16": True}, True),
        ({"machine": "x86_64", "usable": True, "amx_tile": True}, True),
        ({"machine": "x86_64", "usable": False, "amx_tile": True}, False),  # PyTorch does not use it
    ],
)
def test_bf16_is_used_where_the_processor_has_instructions_for_it(
    processor: dict[str, Any], has: bool, pretend: Callable[..., None]
) -> None:
    pretend(**processor)
    assert multiplies_bf16() == has
    assert Compute.of(ComputeConfig("cpu", "bf16")).bf16 == has


def test_a_limit_on_instructions_is_respected(
    pretend: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend("x86_64", usable=True, avx512_bf16=True, amx_tile=True)
    for limit, has in (("AVX512_CORE", False), ("avx512_core_bf16", True), ("AVX512_CORE_AMX", True)):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
        assert multiplies_bf16() == has


@pytest.mark.parametrize(("nodes", "windows"), [(1, 1), (7, 3), (5, 100), (6, 0)])
def test_every_node_has_its_turn_once(nodes: int, windows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compute.SEQUENCES_AT_ONCE, "cpu", 8)
    groups = list(Compute(torch.device("cpu")).node_slices(nodes, windows))
    assert [i for group in groups for i in range(nodes)[group]] == list(range(nodes))


def test_tf32_is_switched_off_again() -> None:
    Compute.of(ComputeConfig("cpu", "tf32"))
    assert torch.get_float32_matmul_precision() == "high"
    Compute.of(ComputeConfig("cpu", "bf16"))
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("device", ["cuda:99", "nonsense", "meta:x"])
def test_a_device_that_is_not_there_is_named(device: str) -> None:
    with pytest.raises(ConfigError, match=r"compute\.device: .* is not available here"):
        Compute.of(ComputeConfig(device))


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_precision_that_a_gpu_lacks_is_named(precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    with pytest.raises(ConfigError) as told:
        Compute.of(ComputeConfig("cuda:0", precision))
    assert str(told.value) == (
        f"compute.precision: Tesla T4 (compute capability 7.5) has no {precision}, which needs 8.0 or later"
        " (valid: fp32, fp64)"
    )
    assert told.value.exit_code == 2
    assert Compute.of(ComputeConfig("cuda:0", "fp32")).device == torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert Compute.of(ComputeConfig("cuda:0", precision)).bf16 == (precision == "bf16")


def test_fp64_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    with pytest.raises(ConfigError, match=r"compute\.precision: this device does not support fp64"):
        Compute.of(ComputeConfig("mps", "fp64"))


def test_memory_is_the_machine_s_or_the_container_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, limit = Compute.of(ComputeConfig("cpu")), tmp_path / "memory.max"
    monkeypatch.setattr(compute, "CONTAINER_LIMIT", limit)
    whole = here.memory()
    assert whole > 2**27
    for text, expected in (("max\n", whole), (f"{2**26}\n", 2**26), (f"{2**60}\n", whole)):
        limit.write_text(text)
        assert here.memory() == expected
