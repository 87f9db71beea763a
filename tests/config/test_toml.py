"""Settings survive writing and reading, and any file gives a configuration or an error sentence."""

from __future__ import annotations

import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cnfgnn.algorithm.methods import METHODS, Like, preset
from cnfgnn.config.settings import Config
from cnfgnn.config.toml import dump, dump_explained, dump_table, parse_change, read_changes
from cnfgnn.errors import CnfgnnError, ConfigError, DataError


@pytest.mark.parametrize("method", METHODS)
def test_a_configuration_survives_writing_and_reading(method: str, tmp_path: Path) -> None:
    config = preset(method, like="pems-bay").with_changes(
        {"data.path": 'odd "name"\\ with\ttabs, é and \x7f', "seed": 3, "training.client_lr": 1e-5}
    )
    path = tmp_path / "config.toml"
    path.write_text(dump(config), encoding="utf-8")
    assert Config().with_changes(read_changes(path)) == config


@pytest.mark.parametrize("like", [None, "metr-la", "pems-bay"])
@pytest.mark.parametrize("include_hidden", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_file_that_explains_itself_gives_the_same_settings(
    method: str, include_hidden: bool, like: Like | None, tmp_path: Path
) -> None:
    config = preset(method, like=like)
    path = tmp_path / "settings.toml"
    path.write_text(dump_explained(config, include_hidden), encoding="utf-8")
    assert Config().with_changes(read_changes(path)) == config
    assert ("direction" in path.read_text(encoding="utf-8")) == include_hidden
    lines = path.read_text(encoding="utf-8").splitlines()
    for above, line in pairwise(lines):
        assert not line.partition("=")[1] or line.startswith("#") or above.startswith("# ")


def test_nested_tables_and_quoted_keys_survive_writing_and_reading() -> None:
    table = {
        "name": 'a "name"\x7f',
        "port": 1,
        "rate": 1e-5,
        "on": True,
        "sites": {"north side": {"sensors": ["1", "é"]}, "south": {}},
    }
    assert tomllib.loads(dump_table(table)) == table


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("training.rounds=3", "training.rounds", 3),
        ("training.client_lr=1e-3", "training.client_lr", 1e-3),
        ("data.missing=as-truth", "data.missing", "as-truth"),
        ("data.missing='masked'", "data.missing", "masked"),
        ("model.gn_widths=[8, 4]", "model.gn_widths", [8, 4]),
        ("data.path=a=b", "data.path", "a=b"),
    ],
)
def test_single_settings_are_read_as_toml_or_as_text(text: str, key: str, value: object) -> None:
    assert parse_change(text) == (key, value)


@pytest.mark.parametrize("text", ["training.rounds", "=3", ""])
def test_text_without_key_and_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="looks like"):
        parse_change(text)


def test_a_missing_or_malformed_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    with pytest.raises(DataError, match=r"settings\.toml"):
        read_changes(path)
    path.write_text("training.rounds = ")
    with pytest.raises(DataError, match="not TOML"):
        read_changes(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="UTF-8"):
        read_changes(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=60)
    | st.text(alphabet="abc=[]\"'.\n 1-e#{}", max_size=80).map(str.encode)
    | st.tuples(
        st.sampled_from(["seed", "training.rounds", "training", "data.shares", "model.gn_widths", "x"]),
        st.sampled_from(
            ["1", "-1", "1.5", '"a"', "[]", "[1, 2]", "true", "nan", "inf", "1979-05-27", "{a=1}"]
        ),
    ).map(lambda pair: f"{pair[0]} = {pair[1]}".encode())
)
def test_any_file_gives_a_configuration_or_an_error_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "any.toml"
    path.write_bytes(content)
    try:
        config = Config().with_changes(read_changes(path))
    except CnfgnnError:
        return
    assert isinstance(config, Config)
