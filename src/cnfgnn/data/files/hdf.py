"""Read the tables that pandas' to_hdf writes, in both of its formats, with h5py alone."""

from __future__ import annotations

from pathlib import Path
from pickletools import genops
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pandas as pd

from cnfgnn.data.files.pickles import unpickle
from cnfgnn.data.files.text import shown
from cnfgnn.errors import DataError

HdfParts = tuple[Any, list[Any], list[tuple[list[Any], npt.NDArray[Any]]]]


def hdf_frame(file: h5py.File, path: Path) -> pd.DataFrame:
    """The only table of a file that pandas' to_hdf wrote, in its "fixed" or its "table" format."""
    nodes: list[h5py.HLObject] = []
    file.visititems(lambda _, node: nodes.append(node))
    tables = [node for node in nodes if _attribute(node, "pandas_type") in ("frame", "frame_table")]
    if len(tables) != 1:
        raise DataError(path, f"must hold one pandas table, but holds {len(tables)}")
    read_parts = _table_parts if "table" in tables[0] else _fixed_parts
    index, names, blocks = read_parts(tables[0])
    labels = [label for items, _ in blocks for label in items]
    frame = pd.concat([pd.DataFrame(values) for _, values in blocks], axis=1)
    frame.columns, frame.index = pd.Index(labels, dtype=object), pd.Index(index)
    # Blocks hold columns of one type each; `names` has them in the order of the file.
    return frame[names] if frame.columns.is_unique else frame


def _fixed_parts(group: h5py.Group) -> HdfParts:
    """Index, column names and (names, values) by block of pandas' fixed format."""
    if "axis0" not in group or "axis1" not in group:
        raise ValueError("its rows or columns have a MultiIndex")
    axis = {name: _typed(group[name][()], _attribute(group[name], "kind")) for name in ("axis0", "axis1")}
    blocks = []
    for block in range(int(group.attrs["nblocks"])):
        items, stored = group[f"block{block}_items"], group[f"block{block}_values"]
        labels = _typed(items[()], _attribute(items, "kind")).tolist()
        if "shape" in stored.attrs:  # pandas writes a stub for an empty array
            raise ValueError("it holds no readings")
        values = _typed(stored[()], _attribute(stored, "value_type"), labels[0])
        blocks.append((labels, values if stored.attrs["transposed"] else values.T))
    return _index(axis["axis1"], "tz" in group["axis1"].attrs), axis["axis0"].tolist(), blocks


def _table_parts(group: h5py.Group) -> HdfParts:
    """The same for pandas' table format: a compound record per row, names in pickled attributes."""
    stored = group["table"]
    records = stored[()]
    blocks = []
    for field in records.dtype.names:
        if field == "index":
            continue
        labels = unpickle(bytes(stored.attrs[f"{field}_kind"]))
        # The numbers of a categorical column are codes, not readings.
        is_category = _attribute(stored, f"{field}_meta") == "category"
        kind = "category" if is_category else _attribute(stored, f"{field}_dtype")
        blocks.append((labels, _typed(records[field].reshape(len(records), -1), kind, labels[0])))
    [(_, names)] = unpickle(bytes(group.attrs["non_index_axes"]))
    # The zone is a pickled object of some library: it is looked for, not built.
    in_zone = any(word == "tz" for _, word, _ in genops(bytes(group.attrs.get("info", b"."))))
    return _index(_typed(records["index"], _attribute(stored, "index_kind")), in_zone), names, blocks


def _index(times: npt.NDArray[Any], in_zone: bool) -> Any:
    """Times of a file; those in a time zone are stored in UTC."""
    return pd.DatetimeIndex(times, tz="UTC") if in_zone else times


def _attribute(node: h5py.HLObject, name: str) -> str:
    value = node.attrs.get(name, b"")
    return value.decode() if isinstance(value, bytes) else ""


def _typed(stored: npt.NDArray[Any], kind: str, column: object = "index") -> npt.NDArray[Any]:
    """An array with the type that pandas recorded: times are stored as integers, text as bytes."""
    if kind.startswith("datetime64"):
        return stored.astype(np.int64).view(kind if "[" in kind else "datetime64[ns]")
    if stored.dtype.kind == "S":
        return np.char.decode(stored, "utf-8").astype(object)
    if stored.dtype.kind not in "iuf" or kind.startswith(("category", "timedelta")):
        raise ValueError(f"column {shown(column)} does not hold numbers")
    return stored
