"""What messages of the engine hold: no file's content, and nothing that decoding would write or fetch."""

from __future__ import annotations

import struct
import uuid
from pathlib import Path
from typing import Any

import pytest
from nvflare.apis.shareable import Shareable
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs import lobs
from nvflare.fuel.utils.fobs.datum import Datum, DatumManager
from nvflare.fuel.utils.fobs.fobs import Packer
from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize

from cnfgnn.federation.flare import contents

FILE, HEADER = 103, ">BBQ"


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    nvflare_fobs_initialize()
    for place, name in ((DatumManager, "add_datum"), (Packer, "unpack"), (lobs, "get_datum_dir")):
        monkeypatch.setattr(place, name, getattr(place, name))  # to have it back afterwards
    contents.install()


def coded(name: str, data: Any) -> dict[str, Any]:
    """What is decoded to an object of the engine."""
    return {"__fobs_type__": name, "__fobs_data__": data}


@pytest.mark.usefixtures("guarded")
def test_an_object_that_names_a_file_is_neither_decoded_nor_sent(tmp_path: Path) -> None:
    secret = tmp_path / "readings.csv"
    secret.write_text("secret")
    named = {"datum_id": str(uuid.uuid4()), "datum_type": None, "dot": 0, "value": str(secret)}
    for part in (
        coded("nvflare.fuel.utils.fobs.datum.Datum", {"data": named}),
        coded("nvflare.apis.workspace.Workspace", [str(tmp_path), "north", "config"]),
        coded(
            "nvflare.fuel.utils.fobs.decomposers.via_downloader.LazyDownloadRef",
            {"lazy_dot": 1, "type": 1, "data": "x"},
        ),
    ):
        with pytest.raises(ValueError, match=contents.NO_FILES):
            fobs.loads(fobs.dumps({"x": part}))
    with pytest.raises(ValueError, match=contents.NO_FILES):
        fobs.dumps({"x": Datum.file_datum(str(secret))})


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("kind", [101, 102, FILE])
@pytest.mark.parametrize("fetched", [0, 1])
def test_decoding_writes_no_file_and_fetches_nothing(kind: int, fetched: int) -> None:
    body = bytes(fobs.dumps("hello"))
    part = uuid.uuid4().bytes + b'{"fqcn": "north", "ref_id": "x"}'
    packed = body + struct.pack(HEADER, kind, fetched, len(part)) + part
    if kind != FILE and not fetched:
        assert fobs.loads(packed) == "hello"
        return
    with pytest.raises(ValueError, match=contents.NO_FILES):
        fobs.loads(packed)


@pytest.mark.usefixtures("guarded")
def test_large_parts_of_a_message_pass() -> None:
    sent = Shareable({"text": "x" * 11_000_000, "bytes": b"y" * 11_000_000})
    assert fobs.loads(fobs.dumps(sent)) == sent
