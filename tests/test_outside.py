"""Methods of other packages: registered or installed, with settings of their own, and safe at a site."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from torch import Tensor

import cnfgnn
from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.algorithm.messages.number_rules import write_numbers
from cnfgnn.algorithm.messages.settings import NodeSettings
from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.algorithm.methods import BUILT_IN
from cnfgnn.algorithm.server import Alternating, Split
from cnfgnn.cli.settings import methods
from cnfgnn.config import outside, toml
from cnfgnn.config.settings import Config, ModelConfig
from cnfgnn.errors import ConfigError
from cnfgnn.federation.site import permissions
from cnfgnn.federation.site.worker import _load_only_what_is_permitted
from cnfgnn.federation.site_task import SiteTask
from cnfgnn.federation.task import settings_of
from cnfgnn.models.graphnet import Edges
from cnfgnn.models.gru import EncoderDecoder
from cnfgnn.models.params import Params
from cnfgnn.runs.folder import Run
from cnfgnn.runs.record import settings_that_differ
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import train
from cnfgnn.testing import (
    check_absent_nodes,
    check_future,
    check_method,
    check_partition,
    check_privacy,
    check_resume,
    check_verbs,
    check_windows,
    one_epoch,
    trained,
)
from cnfgnn.testing.small_networks import network, small
from cnfgnn.testing.two_truths import TwoTruths, brief, differences
from cnfgnn.transports.remote.schema import Refused, check_calls
from tests.federation.in_memory_federation import InMemoryFederation
from tests.privacy.recorded_sites import train_over_wires
from tests.privacy.two_truths import city
from tests.transports.remote.test_schema import PLAN, STARTS

EXAMPLE = Path(__file__).parents[1] / "examples" / "own-method"
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Smoothing:
    """Settings of `Average`."""

    steps: int = cnfgnn.setting(3, "Number of last readings to average.", at_least=1, sent_to_nodes=True)
    label: str = cnfgnn.setting("plain", "Nodes are not told.")


class Average(EncoderDecoder):
    """Forecasts a learned multiple of the mean of the last readings: one weight."""

    hidden, embedding = 1, 0

    def __init__(self, model: ModelConfig, own: Smoothing, *_: object) -> None:
        self.steps = own.steps

    def init(self, generator: torch.Generator) -> Params:
        return {"output.weight": torch.ones(1, 1)}

    def encode(self, theta: Mapping[str, Tensor], batch: Any) -> Tensor:
        return batch.x[:, :, -self.steps :, 0].mean(-1, keepdim=True) * theta["output.weight"][:, None]

    def decode(
        self, theta: Mapping[str, Tensor], batch: Any, h_c: Tensor, h_G: Tensor | None, truth: Any = None
    ) -> Tensor:
        return h_c.expand_as(batch.y)


AVERAGE = cnfgnn.Method(
    "moving-average",
    "Moving average",
    "alternating",
    "average",
    graph_network=False,
    settings={"model.embedding": 0, "model.hidden": 1, "training.rounds": 3},
    own=Smoothing,
    node_model=Average,
)


@pytest.fixture(autouse=True)
def nothing_stays_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(outside, "_registered", {})
    monkeypatch.setattr(outside, "_only", None)
    yield
    outside._offered.cache_clear()


@pytest.fixture
def average() -> cnfgnn.Method:
    return cnfgnn.register(AVERAGE)


# ---- settings --------------------------------------------------------------------------------------------


def test_its_settings_are_listed_changed_checked_and_written(average: cnfgnn.Method) -> None:
    config = cnfgnn.preset("moving-average").with_changes({"own.steps": 2})
    assert (config.own, config.training.rounds, config.given) == (Smoothing(2), 3, {"own.steps"})
    listed = toml.dump_explained(config)
    assert "[own]\n# Number of last readings to average. Range: at least 1.\nsteps = 2\n" in listed
    written = toml.flat(toml.tomllib.loads(toml.dump(config)))
    assert Config().with_changes(dict(reversed(written.items()))) == config
    with pytest.raises(ConfigError, match=r"own\.steps.*at least 1"):
        config.with_changes({"own.steps": 0})
    with pytest.raises(ConfigError, match=r"own\.step: moving-average has no such setting.*own\.steps"):
        config.with_changes({"own.step": 1})
    with pytest.raises(ConfigError, match="at-fedavg has no settings of its own"):
        cnfgnn.preset("at-fedavg").with_changes({"own.steps": 1})
    assert config.with_changes({"method": "at"}).own is None
    assert Config().with_changes(settings_of(config)) == config  # as a task carries them to a server


def test_its_settings_are_in_the_record_of_a_run(average: cnfgnn.Method) -> None:
    config = cnfgnn.preset("moving-average").with_changes({"own.steps": 2})
    assert settings_that_differ(config, "city", 100)[1]["own.steps"] == 2


def test_a_run_whose_package_is_not_installed_says_what_to_do() -> None:
    saved = {"method": "neighbour-attention-2", "own.heads": 3}
    with pytest.raises(ConfigError, match="there is no neighbour-attention-2 here: install the package that"):
        Config().with_changes(saved)


def test_a_configuration_without_it_is_written_as_before() -> None:
    assert "own" not in toml.dump(Config())


@pytest.mark.parametrize("name", ["at-fedavg", "cnfgnn", "Mine", "a/b", "os.path:join", None, ["at"]])
def test_a_name_that_is_taken_or_is_none_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="a package cannot add"):
        cnfgnn.register(cnfgnn.Method(name, "x", "split", "average", True))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"training.epochs": 1}, "epochs"),
        ({"model.embedding": 0}, r"model\.embedding: mine needs at least 1"),
        ({}, r"training\.optimizer_state: mine takes one optimiser step"),
    ],
)
def test_a_preset_that_cannot_be_trained_is_refused_at_once(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        cnfgnn.register(cnfgnn.Method("mine", "x", "split", "average", True, settings=settings))
    assert "mine" not in cnfgnn.METHODS


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (("alternate", "average", True), "the strategy of mine cannot be 'alternate' .valid: alternating"),
        (("alternating", "avg", True), "the sharing of mine, which is alternating, cannot be 'avg'"),
        (("alternating", "pooled", True), "cannot be 'pooled' .valid: keep, average"),
        (("pooled", "average", True), "which is pooled, cannot be 'average' .valid: pooled"),
        (("split", "average", False), "mine needs a Graph Network, because its strategy is split"),
    ],
)
def test_a_misspelt_strategy_or_sharing_is_no_other_method(row: tuple[Any, Any, bool], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        cnfgnn.Method("mine", "x", *row)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"label": 3}, "the label of mine must be text, not 3"),
        ({"settings": None}, "the settings of mine must be a mapping, not None"),
        ({"server": lambda **_: None}, "the server of mine must be a class"),
        ({"network": "Net"}, "the network of mine must be a class or a function, not 'Net'"),
        ({"node_model": 3}, "the node_model of mine must be a class or a function, not 3"),
        ({"graph_network": "yes"}, "the graph_network of mine must be True or False, not 'yes'"),
        ({"strategy": ["split"]}, r"the strategy of mine cannot be \['split'\]"),
    ],
)
def test_a_part_of_another_type_is_named(part: dict[str, Any], says: str) -> None:
    row: dict[str, Any] = {"label": "x", "strategy": "alternating", "sharing": "average"}
    with pytest.raises(ConfigError, match=says):
        cnfgnn.Method("mine", **{**row, "graph_network": True, **part})


def test_a_part_that_would_never_be_used_is_refused() -> None:
    with pytest.raises(ConfigError, match="mine has a network, so its graph_network must be True"):
        cnfgnn.Method("mine", "x", "alternating", "average", False, network=Forgetful)
    with pytest.raises(ConfigError, match="mine cannot have a server, because its strategy is pooled"):
        cnfgnn.Method("mine", "x", "pooled", "pooled", True, server=Noted)


def test_a_method_that_is_refused_leaves_the_others_as_they_were(
    average: cnfgnn.Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(config: Config) -> None:  # meanwhile, another thread registers a method
        outside.add("meanwhile", replace(average, name="meanwhile"))
        raise ConfigError("method", "no")

    monkeypatch.setattr("cnfgnn.algorithm.methods.check_method", check)
    with pytest.raises(ConfigError, match="no"):
        cnfgnn.register(replace(average, settings={"model.hidden": 3}))
    assert cnfgnn.METHODS["moving-average"].settings == average.settings
    assert "meanwhile" in cnfgnn.METHODS


def test_only_a_method_can_be_registered() -> None:
    with pytest.raises(ConfigError, match=r"a cnfgnn\.Method can be registered, not 'at'"):
        cnfgnn.register("at")  # type: ignore[arg-type]


def own_of(kind: Any, default: Any, **declared: Any) -> type:
    """A dataclass of one setting."""
    return make_dataclass("Own", [("a", kind, cnfgnn.setting(default, "A.", **declared))], frozen=True)


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (make_dataclass("Own", [("a", int, 2)]), "need `cnfgnn.setting` with a sentence of help"),
        (
            make_dataclass("Own", [("a", int, 2), ("b", int, cnfgnn.setting(1, "B."))]),  # could not be read
            "need `cnfgnn.setting` with a sentence of help, each of them",
        ),
        (Smoothing(), "must be a dataclass, not Smoothing"),
        (make_dataclass("Own", [("a", int, cnfgnn.setting(1, "A."))]), "must be a frozen dataclass"),
        (make_dataclass("Own", [("a", "Unknown", cnfgnn.setting(1, "A."))]), "NameError: name 'Unknown'"),
        (own_of(dict, None), r"own\.a: mine cannot have a setting of the type <class 'dict'> .valid: int"),
        (own_of(int | None, None), r"own\.a: mine cannot have a setting"),
        (own_of(tuple[str, ...], ("x",)), r"own\.a: mine cannot have a setting"),
        (own_of(Smoothing, Smoothing()), r"own\.a: mine cannot have a setting"),
        (own_of(str, None), r"own\.a: takes text, not None"),
        (own_of(int, 0, at_least=1), r"own\.a: must be at least 1, not 0"),
    ],
)
def test_settings_that_a_run_could_not_keep_are_refused(own: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        cnfgnn.register(cnfgnn.Method("mine", "x", "alternating", "average", True, own=own))
    assert "mine" not in cnfgnn.METHODS


# ---- training --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_node_model_from_outside_passes_what_every_method_must_pass(average: cnfgnn.Method) -> None:
    check_method("moving-average")


class TwoWeights(Average):
    def init(self, generator: torch.Generator) -> Params:
        return {"output.weight": torch.ones(2, 1)}


class WholeNumbers(Average):
    def init(self, generator: torch.Generator) -> Params:
        return {"output.weight": torch.ones(1, 1, dtype=torch.int64)}


class NoWeights(Average):
    def init(self, generator: torch.Generator) -> Params:
        return {}


class Embedded(Average):
    embedding = 3


@pytest.mark.parametrize(
    ("node_model", "width", "says"),
    [
        (
            TwoWeights,
            0,
            r"the weight output.weight .* of a shape \(1, \.\.\.\), not \(2, 1\) of torch.float32",
        ),
        (WholeNumbers, 0, r"must be floating-point .* not \(1, 1\) of torch.int64"),
        (NoWeights, 0, "init of its node model must return a dict of weights"),
        (lambda *_: None, 0, "its node model is a NoneType, not an EncoderDecoder"),
        (Average, 4, "embedding of its node model must be 4, as model.embedding says, not 0"),
        (Embedded, 3, "h_c of its node model must have at least 5 numbers, as model.hidden says, not 1"),
    ],
)
def test_a_node_model_that_breaks_a_rule_is_refused(
    node_model: Callable[..., Any], width: int, says: str
) -> None:
    settings = {"model.embedding": width}
    method = replace(AVERAGE, node_model=node_model, graph_network=width > 0, settings=settings)
    cnfgnn.register(method)
    with pytest.raises(ConfigError, match=says):
        trained(one_epoch("moving-average", **settings, **{"model.hidden": 5}))


def test_its_node_model_trains_over_the_protocol_of_a_federation(
    average: cnfgnn.Method, tmp_path: Path
) -> None:
    config = brief("moving-average", **{"own.steps": 2})
    truths = TwoTruths.of(tmp_path, config, city(), ("plain", "huge"))
    one, other = (train_over_wires(truths, data, ([0], [1, 2, 3])) for data in truths)
    assert differences(one, other) == []
    assert any(b"steps = 2" in message for message in one.messages)
    assert not any(b"label" in message for message in one.messages)


# ---- what a server can ask for ---------------------------------------------------------------------------


def test_text_in_any_language_reaches_a_site() -> None:
    own = own_of(str, "x", sent_to_nodes=True)
    cnfgnn.register(replace(AVERAGE, own=own, node_model=lambda _, told, *__: Average(_, Smoothing())))
    written = outside.written(own("dépôt \n 駅 🚉"))
    assert outside.read("moving-average", written) == own("dépôt \n 駅 🚉")
    prepared(own_model="moving-average", own_settings=written)


def prepared(**numbers: Any) -> None:
    settings = write_numbers(NodeSettings.of(small("gru-fedavg"))) | numbers
    check_calls([Call("prepare", {**settings, **PLAN, "mean": 0.0, "std": 1.0}, STARTS)], Sizes(3))


def test_what_built_in_methods_send_is_as_before() -> None:
    assert not [name for name in write_numbers(NodeSettings.of(small("cnfgnn-plus"))) if "own" in name]


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"own_model": "antigravity", "own_settings": "{}"}, "antigravity is not installed here"),
        ({"own_model": "antigravity:x", "own_settings": "{}"}, "own_model cannot be"),
        ({"own_model": "../mine", "own_settings": "{}"}, "own_model cannot be"),
        ({"own_model": "moving-average"}, "own_settings is missing"),
        ({"own_model": "moving-average", "own_settings": "{steps = 0}"}, r"own\.steps: must be at least 1"),
        ({"own_model": "moving-average", "own_settings": "{steps = [}"}, "no settings"),
        ({"own_model": "moving-average", "own_settings": '{label = "x"}'}, "no such setting"),
        ({"own_model": "moving-average", "own_settings": "import os"}, "own_settings cannot be"),
    ],
)
def test_a_site_makes_no_other_node_model_than_those_installed(
    average: cnfgnn.Method, numbers: dict[str, Any], says: str
) -> None:
    with pytest.raises(Refused, match=says):
        prepared(**numbers)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("method", "rules"),
    [("at-fedavg", ""), ("", 'methods = ["at-fedavg"]'), ("moving-average", ""), ("", "")],
)
def test_the_process_of_a_task_loads_no_method_that_was_not_permitted(
    average: cnfgnn.Method, tmp_path: Path, method: str, rules: str
) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "site.toml").write_text(
        f'name = "north"\nsensors = ["s0"]\n[permissions]\n{rules}\n'
    )
    _load_only_what_is_permitted(tmp_path, SiteTask("1", "train" if method else "live", "run-a", method))
    if "at-fedavg" not in (method + rules):
        prepared(own_model="moving-average", own_settings="{steps = 2}")
        return
    with pytest.raises(Refused, match="moving-average is not installed here"):
        prepared(own_model="moving-average", own_settings="{steps = 2}")


def test_a_site_without_the_package_says_which_method_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "site.toml").write_text('name = "north"\nsensors = ["s0"]\n')
    permitted = permissions.Permissions(tmp_path)

    def refused() -> str:
        task = SiteTask("1", "train", "run-a", "moving-average", 3)
        refusal = permitted.refusal(task, None, permissions.Used(), 0.0)
        return "" if refusal is None else refusal.reason

    assert "no package with the method moving-average is installed there" in refused()
    cnfgnn.register(AVERAGE)
    assert refused() == ""


# ---- installed packages ----------------------------------------------------------------------------------


def offer(folder: Path, package: str, name: str, value: str, code: str = "") -> None:
    """What pip leaves of a package with one module and one entry point."""
    about = folder / f"{package}-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[cnfgnn.methods]\n{name} = {value}\n")
    (folder / f"{package}.py").write_text(code)


def test_packages_are_listed_without_being_loaded_and_one_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(
        tmp_path, "broken_one", "broken", "broken_one:METHOD", "raise RuntimeError('[/no] luck\\n\\nat all')"
    )
    offer(tmp_path, "leaver", "leaving", "leaver:METHOD", "raise SystemExit('bye')")
    offer(tmp_path, "another", "another", "another:METHOD", "METHOD = 3")
    offer(tmp_path / "b", "twin_a", "twins", "twin_a:METHOD")
    offer(tmp_path / "b", "twin_b", "twins", "twin_b:METHOD")
    offer(tmp_path / "c", "thief", "at-fedavg", "thief:METHOD")
    for folder in (tmp_path, tmp_path / "b", tmp_path / "c"):
        monkeypatch.syspath_prepend(folder)
    outside._offered.cache_clear()
    assert {"broken", "another", "twins"} <= set(cnfgnn.METHODS)
    assert "broken" in cnfgnn.METHODS
    assert "broken_one" not in sys.modules
    with pytest.raises(ConfigError, match=r"broken_one, which offers broken.*RuntimeError: \[/no\] luck\)$"):
        cnfgnn.preset("broken")
    with pytest.raises(ConfigError, match=r"leaver, which offers leaving.*SystemExit: bye\)$"):
        cnfgnn.preset("leaving")
    with pytest.raises(ConfigError, match=r"another must be a cnfgnn\.Method of this name"):
        cnfgnn.preset("another")
    with pytest.raises(ConfigError, match="offered by twin_a and twin_b"):
        cnfgnn.preset("twins")
    cnfgnn.preset("at-fedavg")
    assert "thief" not in sys.modules
    methods()  # lists the others
    listed = capsys.readouterr().out
    assert "the package broken_one, which" in listed
    assert "mlp-central" in listed


@pytest.mark.slow
def test_the_example_is_installed_trained_and_passes_what_every_method_must_pass(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "installed"
    shutil.copytree(EXAMPLE, source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--target", str(target), str(source)], check=True)
    path = os.pathsep.join([str(target), str(ROOT / "src")])

    def run(*command: str) -> str:
        environment = os.environ | {"PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-m", *command], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "# Number of attention heads. Range: 1 to 64.\nheads = 2" in run(
        "cnfgnn", "settings", "--method", "neighbour-attention"
    )
    settings = ("own.heads=4", "city.sensors=4", "city.days=2", "training.rounds=1")
    changes = [argument for setting in settings for argument in ("--set", setting)]
    out = str(tmp_path / "run")
    run("cnfgnn", "train", "--method", "neighbour-attention", *changes, "--out", out)
    assert "heads = 4" in (tmp_path / "run" / "config.toml").read_text()
    run("pytest", "-p", "no:cacheprovider", str(source / "test_neighbour_attention.py"))


# ---- the checks themselves -------------------------------------------------------------------------------


class Forgetful(torch.nn.Module):
    """A Graph Network that takes no notice of who is there, and draws at random."""

    def __init__(self, model: ModelConfig, own: None) -> None:
        super().__init__()
        self.out = torch.nn.Linear(model.sent_width, model.embedding)

    def forward(self, h_c: Tensor, graph: Edges, present: Tensor | None = None) -> Tensor:
        return self.out(h_c + h_c.mean(0, keepdim=True)) + torch.rand(())


class Noted(Alternating):
    """A server of another package."""

    rounds: ClassVar[list[int]] = []

    def round(self, r_g: int) -> None:
        self.rounds.append(r_g)
        super().round(r_g)


@pytest.fixture
def forgetful() -> str:
    settings = {"model.embedding": 4}
    made = cnfgnn.Method(
        "forgetful", "x", "alternating", "average", True, settings=settings, network=Forgetful
    )
    return cnfgnn.register(made).name


def test_a_network_that_takes_no_notice_of_who_is_there_is_caught(forgetful: str) -> None:
    with pytest.raises(AssertionError, match="absent nodes leave a trace in the embeddings of others"):
        check_absent_nodes(forgetful)


class Mixing(Average):
    """A node model that mixes the nodes of its group."""

    def encode(self, theta: Mapping[str, Tensor], batch: Any) -> Tensor:
        return super().encode(theta, batch).mean(0, keepdim=True).expand(len(batch.x), -1, -1)


def test_a_node_model_that_sees_the_others_of_its_group_is_caught() -> None:
    cnfgnn.register(replace(AVERAGE, node_model=Mixing))
    with pytest.raises(AssertionError, match="depend on how nodes are grouped into sites"):
        check_partition("moving-average")


class Peeking(Average):
    """A node model whose forecasts are a little like what will be read."""

    def decode(self, theta: Mapping[str, Tensor], batch: Any, *args: Any) -> Tensor:
        return super().decode(theta, batch, *args) + 0.01 * batch.y


def test_a_node_model_that_knows_what_will_be_read_is_caught() -> None:
    cnfgnn.register(replace(AVERAGE, node_model=Peeking))
    with pytest.raises(AssertionError, match="depend on readings that come after them"):
        check_future("moving-average")


def test_a_network_that_mixes_windows_is_caught(monkeypatch: pytest.MonkeyPatch, forgetful: str) -> None:
    monkeypatch.setattr(Forgetful, "forward", lambda self, h_c, *_: self.out(h_c - h_c.mean(1, keepdim=True)))
    with pytest.raises(AssertionError, match="depends on the other windows of its minibatch"):
        check_windows(forgetful)


class Curious(Alternating):
    """A server that asks for what a site does not answer if there is no Graph Network."""

    def round(self, r_g: int) -> None:
        super().round(r_g)
        self.nodes.encode()


def test_a_server_that_no_site_would_answer_is_caught() -> None:
    cnfgnn.register(replace(AVERAGE, server=Curious))
    with pytest.raises(
        AssertionError, match="a site would not answer, with this strategy and sharing: encode"
    ):
        check_verbs("moving-average")


@pytest.mark.parametrize("method", BUILT_IN)
def test_no_method_forecasts_from_what_comes_later_mixes_windows_or_asks_in_vain(method: str) -> None:
    check_future(method)
    if cnfgnn.METHODS[method].graph_network:
        check_windows(method)
    if cnfgnn.METHODS[method].federated:
        check_verbs(method)


class Remembering(Average):
    """A node model that remembers the readings it saw last, which may be those of their owner."""

    last = 0.0

    def encode(self, theta: Mapping[str, Tensor], batch: Any) -> Tensor:
        before, self.last = self.last, float(batch.y.sum())
        return super().encode(theta, batch) + 1e-3 * before


@pytest.mark.slow
def test_a_node_model_that_tells_the_true_readings_is_caught(tmp_path: Path) -> None:
    cnfgnn.register(replace(AVERAGE, node_model=Remembering))
    with pytest.raises(AssertionError, match="a server sees what the true readings are: message"):
        check_privacy("moving-average", tmp_path)


@pytest.mark.slow
def test_a_network_that_draws_at_random_is_caught(forgetful: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check_resume(forgetful, tmp_path)


def test_the_checks_name_a_method_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="there is no method 'forgetfull'"):
        check_method("forgetfull")


class Returning(torch.nn.Module):
    """A Graph Network with one weight that is learned and one that is not; it returns what it is told to."""

    returned: ClassVar[Callable[[Tensor], Any]]

    def __init__(self, model: ModelConfig, own: None) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(model.embedding))
        self.fixed = torch.nn.Parameter(torch.ones(model.embedding), requires_grad=False)

    def forward(self, h_c: Tensor, graph: Edges, present: Tensor | None = None) -> Any:
        return type(self).returned(h_c.mean(-1, keepdim=True) * self.scale * self.fixed)


@pytest.fixture
def returning() -> str:
    settings = {"model.embedding": 4}
    made = cnfgnn.Method(
        "returning", "x", "alternating", "average", True, settings=settings, network=Returning
    )
    return cnfgnn.register(made).name


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (
            lambda h_G: h_G[..., :1],
            r"returned the shape \(6, 24, 1\), not \(nodes, windows, model.embedding\)",
        ),
        (lambda h_G: h_G.transpose(0, 1), r"returned the shape \(24, 6, 4\), .* = \(6, 24, 4\)"),
        (lambda h_G: (h_G, None), "returned tuple, not"),
    ],
)
def test_what_a_network_returns_is_checked(
    returning: str, returned: Callable[[Tensor], Any], says: str
) -> None:
    with (
        mock.patch.object(Returning, "returned", returned, create=True),
        pytest.raises(ConfigError, match=says),
    ):
        trained(one_epoch(returning))


def test_weights_that_require_no_gradient_stay_as_they_are(returning: str) -> None:
    with mock.patch.object(Returning, "returned", lambda h_G: h_G, create=True):
        strategy = trained(one_epoch(returning)).strategy
    assert isinstance(strategy, Alternating)
    assert strategy.gn is not None
    weights = strategy.gn.gn.state_dict()
    assert (weights["fixed"] == 1).all()
    assert (weights["scale"] != 1).all()


def test_a_network_without_weights_is_refused() -> None:
    class Fixed(Returning):
        def __init__(self, model: ModelConfig, own: None) -> None:
            super().__init__(model, own)
            self.requires_grad_(False)

    settings = {"model.embedding": 4}
    cnfgnn.register(
        cnfgnn.Method("fixed", "x", "alternating", "average", True, settings=settings, network=Fixed)
    )
    with pytest.raises(ConfigError, match="has no weights that could be learned"):
        trained(one_epoch("fixed"))
    cnfgnn.register(
        cnfgnn.Method("loose", "x", "alternating", "average", True, settings=settings, network=lambda *_: 3)
    )
    with pytest.raises(ConfigError, match=r"its Graph Network is a int, not a torch\.nn\.Module"):
        trained(one_epoch("loose"))


def test_a_server_of_another_strategy_is_refused() -> None:
    settings = {"model.embedding": 4}
    cnfgnn.register(
        cnfgnn.Method("crossed", "x", "alternating", "average", True, settings=settings, server=Split)
    )
    with pytest.raises(ConfigError, match="the server of crossed, Split, is not derived from Alternating"):
        trained(one_epoch("crossed"))


def test_a_server_of_its_own_leads_the_rounds() -> None:
    settings = {"model.embedding": 0}
    cnfgnn.register(
        cnfgnn.Method("noted", "x", "alternating", "average", False, settings=settings, server=Noted)
    )
    trained(one_epoch("noted"))
    assert Noted.rounds == [1, 2]


@pytest.mark.slow
def test_the_example_trains_in_a_federation_as_in_the_simulator(tmp_path: Path) -> None:
    method = runpy.run_path(str(EXAMPLE / "neighbour_attention.py"))["METHOD"]
    cnfgnn.register(method)
    config = one_epoch("neighbour-attention", **{"own.heads": 3, "compute.precision": "fp64"})
    federation = InMemoryFederation(tmp_path, network(seconds=3600))
    federation.train(config)
    run = Run.open(federation.server / "runs" / "one")
    assert run.config.own.heads == 3
    expected = train(simulate(network(seconds=3600), config)).best
    assert run.progress.best.loss == pytest.approx(expected.loss, rel=1e-6)
