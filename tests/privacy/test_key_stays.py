"""The key of the blurred copies is in its own file and nowhere else."""

from __future__ import annotations

import base64
import logging
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cnfgnn.errors import RunError
from cnfgnn.privacy.copies import COPIES_FILE, KEY_FILE, CopyStore
from cnfgnn.privacy.noise import KEY_BYTES
from cnfgnn.testing.two_truths import TwoTruths, brief
from tests.privacy.recorded_sites import train_over_wires
from tests.privacy.two_truths import city, train_in_folder


def forms_of(key: bytes) -> Iterator[bytes]:
    """What a key looks like in a file or a message, whole or in part."""
    for part in (key, key[: KEY_BYTES // 2], key[KEY_BYTES // 2 :]):
        yield part
        yield part.hex().encode()
        yield part.hex().upper().encode()
        yield base64.b64encode(part).rstrip(b"=")[:-1]  # the last character also depends on what follows
        yield base64.urlsafe_b64encode(part).rstrip(b"=")[:-1]
        yield repr(part)[2:-1].encode()
        yield ", ".join(map(str, part)).encode()
        yield str(int.from_bytes(part, "big")).encode()
        yield str(int.from_bytes(part, "little")).encode()


def occurs(key: bytes, content: bytes) -> bool:
    return any(form in content for form in forms_of(key))


@pytest.mark.slow
def test_nothing_of_the_key_is_in_any_file_message_or_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    config = brief("cnfgnn-private", **{"training.rounds": 1})
    truths = TwoTruths.of(tmp_path / "copies", config, city(n=3, rows=60), ("plain", "noisy"))
    key_file = tmp_path / "copies" / KEY_FILE
    key = bytes.fromhex(key_file.read_text())
    assert len(key) == KEY_BYTES
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    seen = [
        train_in_folder(truths, truths.one, tmp_path / "run", killed=4),
        train_over_wires(truths, truths.other, ([0], [1, 2])),
    ]
    (tmp_path / "copies" / COPIES_FILE).rename(tmp_path / "moved.sqlite")
    with pytest.raises(RunError, match="is missing") as error:
        CopyStore(tmp_path / "copies")
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != key_file]
    assert {"manifest.json", "moved.sqlite"} <= {path.name for path in files}
    for path in files:
        assert not occurs(key, path.read_bytes()), path
    for one in seen:
        assert len(one.messages) > 10
        for message in [*one.messages, *one.files.values(), *one.of_owner.values()]:
            assert not occurs(key, message)
    shown = capfd.readouterr()
    said = [caplog.text, shown.out, shown.err, str(error.value), repr(truths.copies), f"{vars(truths)}"]
    for text in said:
        assert not occurs(key, text.encode())
    assert occurs(key, key_file.read_bytes())  # it would be found


def test_a_key_is_found_in_every_form() -> None:
    """A test of the test."""
    key = bytes(range(200, 232))
    for text in (key.hex(), base64.b64encode(key).decode(), repr(key), str(list(key)), repr(key[:16])):
        assert occurs(key, f"the key is {text}.".encode())
    assert occurs(key, b"..." + key + b"...")
    assert not occurs(key, bytes(64) + b"no key here")
