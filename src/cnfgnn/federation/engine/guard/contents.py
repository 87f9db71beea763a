"""What a message of the engine may hold: the few kinds of objects that a task needs, and nothing else.

The engine's objects for large contents name a file: whoever sends one back, as it does with the cookies of a
request, sends the file's content. Others have a message's content written to a file when it is decoded, or
fetched from any other process. Arrays are unpacked, to a thousand times their size. And a message may say how
its objects are to be encoded from then on, which keeps a server from starting tasks. Our messages are bytes,
and those of the engine itself are small.
"""

from __future__ import annotations

from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.shareable import Shareable
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.class_loader import get_class_name
from nvflare.fuel.utils.fobs import lobs
from nvflare.fuel.utils.fobs.datum import Datum, DatumManager, DatumRef, DatumType
from nvflare.fuel.utils.fobs.fobs import FOBS_TYPE, Packer
from nvflare.private.admin_defs import Message

PART_OF_MESSAGE = (DatumType.TEXT, DatumType.BLOB)
# The engine decodes dozens of kinds, and each that a process has ever sent or received. These have no content
# but what the message holds; a `DatumRef` stands for a large part of the same message.
DECODED = frozenset(
    map(get_class_name, (Shareable, FLContext, Message, Client, JobMetaKey, DatumRef, tuple, set))
)
NO_FILES = "messages hold no files"
NOT_DECODED = "messages hold no objects of this kind"

_add_datum = DatumManager.add_datum
_unpack = Packer.unpack


def install() -> None:
    """Have this process neither send nor decode other contents from now on."""
    fobs.register_enum_types(JobMetaKey)  # the others are; else the first message decides how it is encoded
    DatumManager.add_datum = _add_if_contained
    Packer.unpack = _unpack_if_contained
    lobs.get_datum_dir = _no_folder


def _add_if_contained(manager: DatumManager, datum: Datum) -> None:
    if datum.datum_type not in PART_OF_MESSAGE or datum.dot:
        raise ValueError(NO_FILES)
    _add_datum(manager, datum)


def _unpack_if_contained(packer: Packer, part: Any) -> Any:
    if type(part) is dict and FOBS_TYPE in part and part[FOBS_TYPE] not in DECODED:
        raise ValueError(NOT_DECODED)
    return _unpack(packer, part)


def _no_folder() -> str:
    raise ValueError(NO_FILES)
