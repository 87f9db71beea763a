"""What a message of the engine may hold: nothing that its receiver would look up in a file or elsewhere.

The engine's objects for large contents name a file: whoever sends one back, as it does with the cookies of a
request, sends the file's content. Others have a message's content written to a file when it is decoded, or
fetched from any other process. Our messages are bytes, and those of the engine itself are small.
"""

from __future__ import annotations

from typing import Any

from nvflare.apis.workspace import Workspace
from nvflare.fuel.utils.fobs import lobs
from nvflare.fuel.utils.fobs.datum import Datum, DatumManager, DatumType
from nvflare.fuel.utils.fobs.decomposers.via_downloader import LazyDownloadRef
from nvflare.fuel.utils.fobs.fobs import FOBS_TYPE, Packer

PART_OF_MESSAGE = (DatumType.TEXT, DatumType.BLOB)
# A `Workspace` tells whether a folder exists. Of the others only references are ever part of a message.
NOT_DECODED = frozenset(f"{one.__module__}.{one.__qualname__}" for one in (Datum, LazyDownloadRef, Workspace))
NO_FILES = "messages hold no files"

_add_datum = DatumManager.add_datum
_unpack = Packer.unpack


def install() -> None:
    """Have this process neither send nor decode such contents from now on."""
    DatumManager.add_datum = _add_if_contained
    Packer.unpack = _unpack_if_contained
    lobs.get_datum_dir = _no_folder


def _add_if_contained(manager: DatumManager, datum: Datum) -> None:
    if datum.datum_type not in PART_OF_MESSAGE or datum.dot:
        raise ValueError(NO_FILES)
    _add_datum(manager, datum)


def _unpack_if_contained(packer: Packer, part: Any) -> Any:
    if type(part) is dict and part.get(FOBS_TYPE) in NOT_DECODED:
        raise ValueError(NO_FILES)
    return _unpack(packer, part)


def _no_folder() -> str:
    raise ValueError(NO_FILES)
