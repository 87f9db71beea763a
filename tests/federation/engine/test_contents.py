"""What messages of the engine hold: no file's content, and nothing that decoding would write, fetch or
unpack."""

from __future__ import annotations

import io
import struct
import uuid
import zipfile
from pathlib import Path
from typing import Any

import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.shareable import Shareable
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs import fobs as coder
from nvflare.fuel.utils.fobs import lobs
from nvflare.fuel.utils.fobs.datum import Datum, DatumManager
from nvflare.fuel.utils.fobs.fobs import Packer
from nvflare.private.admin_defs import Message
from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize

from cnfgnn.federation.engine.guard import contents

FILE, HEADER = 103, ">BBQ"


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    nvflare_fobs_initialize()
    for place, name in ((DatumManager, "add_datum"), (Packer, "unpack"), (lobs, "get_datum_dir")):
        monkeypatch.setattr(place, name, getattr(place, name))  # to have it back afterwards
    fobs.dumps(None)  # registers those of Python's own kinds
    decoders = dict(coder._decomposers)
    decoders.pop("nvflare.apis.job_def.JobMetaKey", None)  # as in a process that has just started
    monkeypatch.setattr(coder, "_decomposers", decoders)
    contents.install()


def coded(name: str, data: Any) -> dict[str, Any]:
    """What is decoded to an object of the engine."""
    return {"__fobs_type__": name, "__fobs_data__": data}


def archive(size: int) -> dict[str, Any]:
    """What the engine decodes to an archive of arrays, which it unpacks when it looks at it."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as files:
        files.writestr("zeros", bytes(size))
    return coded("numpy.ndarray", {"type": "native", "data": packed.getvalue()})


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
        with pytest.raises(ValueError, match=contents.NOT_DECODED):
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


@pytest.mark.usefixtures("guarded")
def test_what_the_engine_itself_sends_passes() -> None:
    peer, sent = FLContext(), Shareable({"names": ("north", {"south"})})
    peer.set_prop("__identity_name__", "north", private=False)
    sent.set_peer_context(peer)
    command = Message("train.start_job", sent)
    command.headers["job_meta"] = {JobMetaKey.JOB_CLIENTS: [{"name": "north"}]}
    received = fobs.loads(fobs.dumps(command))
    assert received.headers["job_meta"] == {"job_clients": [{"name": "north"}]}
    assert received.body["names"] == sent["names"]
    assert received.body.get_peer_context().get_identity_name() == "north"


@pytest.mark.usefixtures("guarded")
def test_a_small_message_does_not_become_a_large_one() -> None:
    """A thousandth of its size: a message of 16 MB would fill 16 GB."""
    message = bytes(fobs.dumps(coded("nvflare.apis.shareable.Shareable", archive(10_000_000))))
    assert len(message) < 20_000
    with pytest.raises(ValueError, match=contents.NOT_DECODED):
        fobs.loads(message)


@pytest.mark.usefixtures("guarded")
def test_what_was_once_encoded_is_not_decoded_for_that() -> None:
    """The engine decodes every kind that it has encoded, such as what it was sent and sends back."""

    class Anything:
        pass

    message = fobs.dumps(Anything())
    with pytest.raises(ValueError, match=contents.NOT_DECODED):
        fobs.loads(message)


@pytest.mark.usefixtures("guarded")
def test_no_message_decides_how_a_process_encodes_its_own() -> None:
    """A site would keep the server from starting tasks: the description of a task could not be sent."""
    forged = coded("nvflare.apis.job_def.JobMetaKey", {})
    forged["__fobs_dc__"] = "nvflare.fuel.utils.fobs.decomposer.DataClassDecomposer"
    with pytest.raises(Exception, match="dict"):
        fobs.loads(fobs.dumps(forged))
    meta = {JobMetaKey.JOB_CLIENTS: ["north"]}
    assert fobs.loads(fobs.dumps(meta)) == meta
