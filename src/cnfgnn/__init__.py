"""Cross-node federated graph neural networks: sensors forecast together without sharing their readings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cnfgnn.version import __version__

if TYPE_CHECKING:
    from cnfgnn.api import (
        METHODS,
        Bytes,
        CityConfig,
        CnfgnnError,
        ComputeConfig,
        Config,
        ConfigError,
        DataConfig,
        DataError,
        Dataset,
        Dates,
        Decimal,
        DivergedError,
        Errors,
        Experiment,
        Graph,
        GraphConfig,
        IntervalErrors,
        IntervalScores,
        Like,
        Loss,
        MachineError,
        Method,
        Missing,
        ModelConfig,
        NodeError,
        NoSiteAnswered,
        Phase,
        Precision,
        PrivacyConfig,
        Progress,
        Readings,
        Result,
        Round,
        Run,
        RunError,
        Scores,
        Split,
        StorageError,
        TrainingConfig,
        Unwatched,
        Watcher,
        Wire,
        city,
        evaluate,
        fit,
        forecast,
        load,
        preset,
        resume,
    )


def __getattr__(name: str) -> object:
    """Import the Python API on first use, so that `import cnfgnn` and the command line's help stay fast."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cnfgnn import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "METHODS",
    "Bytes",
    "CityConfig",
    "CnfgnnError",
    "ComputeConfig",
    "Config",
    "ConfigError",
    "DataConfig",
    "DataError",
    "Dataset",
    "Dates",
    "Decimal",
    "DivergedError",
    "Errors",
    "Experiment",
    "Graph",
    "GraphConfig",
    "IntervalErrors",
    "IntervalScores",
    "Like",
    "Loss",
    "MachineError",
    "Method",
    "Missing",
    "ModelConfig",
    "NoSiteAnswered",
    "NodeError",
    "Phase",
    "Precision",
    "PrivacyConfig",
    "Progress",
    "Readings",
    "Result",
    "Round",
    "Run",
    "RunError",
    "Scores",
    "Split",
    "StorageError",
    "TrainingConfig",
    "Unwatched",
    "Watcher",
    "Wire",
    "__version__",
    "city",
    "evaluate",
    "fit",
    "forecast",
    "load",
    "preset",
    "resume",
]
