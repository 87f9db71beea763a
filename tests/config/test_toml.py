"""Settings survive the way to a file and back, and whatever a file holds is settings or a sentence."""

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
def test_a_configuration_comes_back_from_its_file(method: str, tmp_path: Path) -> None:
    config = preset(method, like="pems-bay").with_changes(
        {"data.path": 'odd "name"\\ with\ttabs, é and \x7f', "seed": 3, "training.client_lr": 1e-5}
    )
    path = tmp_path / "config.toml"
    path.write_text(dump(config), encoding="utf-8")
    assert Config().with_changes(read_changes(path)) == config


BEFORE = """\
method = "gru-local"
size = "727k"
seed = 1

[data]
path = "city"
history = 12
horizon = 12
shares = [0.7, 0.1, 0.2]
missing = "as-truth"
missing_value = []
outliers = "missing"
dates = "auto"
decimal = "auto"
timezone = ""

[city]
sensors = 24
days = 14.0
seed = 0
dropout = 0.01
noise = 1.0

[graph]
direction = "files"

[model]
hidden = 200
layers = 2
embedding = 0
gn_widths = [256, 256, 128]
gn_layers = 2
gn_mean = false
global_input = "empty"
encoder = "gru"
decoder = "autoregressive"
change = false
gaps = false
profile = false
calendar = 0
personal = 0
personal_head = false
sent = 0

[training]
rounds = 500
patience = 20
client_rounds = 5
server_rounds = 1
client_batch = 128
server_batch = 48
client_lr = 0.001
server_lr = 0.001
optimizer_state = "fresh"
sampling = 1000.0
loss = "square"
schedule = "constant"
fmtl_lambda = 0.1
fmtl_norm = "squared"
average_every = 0
wire = "full"
seen = 1.0

[compute]
device = "auto"
precision = "fp32"
memory = 0.0
"""  # as version 0.1 wrote it for gru-local of size 727k with the settings of PEMS-BAY


def test_a_configuration_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(BEFORE, encoding="utf-8")
    assert Config().with_changes(read_changes(path)) == preset("gru-local", "727k", "pems-bay")
    path.write_text(BEFORE.replace("noise = 1.0", "noise = 2.0"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^city.noise: is no longer a setting"):
        Config().with_changes(read_changes(path))


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


def test_tables_within_tables_and_odd_names_come_back() -> None:
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
def test_single_settings_are_read_as_toml_or_as_words(text: str, key: str, value: object) -> None:
    assert parse_change(text) == (key, value)


@pytest.mark.parametrize("text", ["training.rounds", "=3", ""])
def test_what_is_no_change_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="looks like"):
        parse_change(text)


def test_a_file_that_is_not_toml_or_not_there_is_named(tmp_path: Path) -> None:
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
def test_any_file_gives_settings_or_a_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "any.toml"
    path.write_bytes(content)
    try:
        config = Config().with_changes(read_changes(path))
    except CnfgnnError:
        return
    assert isinstance(config, Config)
