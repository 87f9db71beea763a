"""States are whole or not there, and old ones make room."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from cnfgnn.algorithm.store import MemoryStore
from cnfgnn.errors import RunError, StorageError
from cnfgnn.files import check_can_be_written, read_json, read_json_or_empty, write_whole
from cnfgnn.runs.checkpoints import FolderStore


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStore | FolderStore:
    return MemoryStore() if request.param == "memory" else FolderStore(tmp_path / "states")


def test_what_was_written_comes_back_to_the_bit(store: MemoryStore | FolderStore) -> None:
    state = {"w": torch.randn(3, 4).double(), "steps": torch.tensor(5)}
    store.write("best", state, ())
    read = store.read("best")
    assert read.keys() == state.keys()
    assert all(torch.equal(read[name], state[name]) for name in state)


def test_a_state_does_not_change_with_the_tensors_it_was_made_from(store: MemoryStore | FolderStore) -> None:
    w = torch.zeros(2)
    store.write("best", {"w": w}, ())
    w += 1
    store.read("best")["w"].add_(1)
    assert store.read("best")["w"].tolist() == [0.0, 0.0]


def test_only_the_new_state_and_those_named_stay(store: MemoryStore | FolderStore) -> None:
    for k in range(5):
        store.write(f"round-{k}", {"w": torch.tensor([float(k)])}, {"round-1", f"round-{k - 1}"})
    assert [store.read(f"round-{k}")["w"].item() for k in (1, 3, 4)] == [1.0, 3.0, 4.0]
    for k in (0, 2):
        with pytest.raises(RunError, match=f"round-{k}.*is missing"):
            store.read(f"round-{k}")


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "nonsense"])
def test_a_damaged_state_is_named(tmp_path: Path, damage: str) -> None:
    store = FolderStore(tmp_path)
    store.write("best", {"w": torch.zeros(100)}, ())
    path = tmp_path / "best.safetensors"
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    damaged = {"cut": content[:-50], "flipped": content, "empty": b"", "nonsense": b"nonsense" * 40}[damage]
    path.write_bytes(damaged)
    with pytest.raises(RunError, match=r"best\.safetensors.*damaged"):
        store.read("best")


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.write("best", {"w": torch.zeros(2)}, ())
    (tmp_path / ".best.safetensors.partial").mkdir()  # the place for writing aside cannot be used
    with pytest.raises(StorageError, match=r"best\.safetensors: cannot be written"):
        store.write("best", {"w": torch.ones(2)}, ())
    assert store.read("best")["w"].tolist() == [0.0, 0.0]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_writers_of_the_same_file_do_not_mix_their_contents(tmp_path: Path) -> None:
    path = tmp_path / "forecasts.csv"
    contents = [bytes([letter]) * (1 << 20) for letter in b"abcd"]
    write_whole(path, contents[0])
    with ThreadPoolExecutor() as pool:
        writing = [pool.submit(write_whole, path, content) for content in contents * 5]
        while not all(one.done() for one in writing):
            assert path.read_bytes() in contents
    for one in writing:
        one.result()
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_does_not_reach_the_file(tmp_path: Path) -> None:
    (tmp_path / ".file.partial").write_bytes(b"a part of something longer")
    write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(StorageError, match=r"pipe: cannot be written \(it is a device or a pipe\)"):
        write_whole(pipe, b"content")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("name", [".", "folder", "n" * 300])
def test_a_name_that_no_file_can_have_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for attempt in (check_can_be_written, partial(write_whole, content=b"content")):
        with pytest.raises(StorageError, match=r"cannot be written \((it is a folder|File name too long)\)"):
            attempt(Path(name))
    assert os.listdir(tmp_path) == ["folder"]


def test_a_json_file_is_an_object_or_an_error(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    assert read_json(path) is None
    assert read_json_or_empty(path) == {}
    for damaged in (b"", b"[1]", b"\xff", b'{"a": '):
        path.write_bytes(damaged)
        with pytest.raises(RunError, match="is damaged and cannot be read"):
            read_json(path)
        assert read_json_or_empty(path) == {}
    path.write_bytes(b'{"a": 1}')
    assert read_json(path) == read_json_or_empty(path) == {"a": 1}
