"""Plans: a comparison file of methods, settings and seeds on the same data, as cases and runs."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from cnfgnn.algorithm.experiment import fit_to_windows
from cnfgnn.algorithm.messages.ledger import Bytes
from cnfgnn.algorithm.methods import LIKES, Like, method_of, preset
from cnfgnn.config.settings import Config
from cnfgnn.config.toml import flat, read_changes
from cnfgnn.data.dataset import Dataset
from cnfgnn.errors import ConfigError, DataError, RunError, StorageError
from cnfgnn.runs.folder import Run
from cnfgnn.runs.scores import Errors

# Settings that may differ between a plan and a run that exists: paths, devices and limits.
CIRCUMSTANCES = ("data.path", "compute.device", "compute.memory", "training.rounds", "training.patience")
BEGINNING = {"config.toml", ".config.toml.partial", ".manifest.json.partial"}  # files before the manifest
TARGETS = ("data.horizon", "data.missing", "data.target")  # what a validation error is over
PER_RUN = ("method", "size", "seed")  # settings that the plan chooses for each run


@dataclass(frozen=True)
class Case:
    """One line of a comparison: a method at a size, with its settings."""

    method: str
    size: str
    config: Config  # for any seed
    varied: Mapping[str, Any] = field(default_factory=dict)  # settings that distinguish this line from others
    label: str = ""
    group: str = ""  # a name for variants that belong together

    @property
    def name(self) -> str:
        """The name of its run folders; the same case has the same name in every plan."""
        size = [] if self.size == "63k" else [self.size]
        varied = [f"{key.rpartition('.')[2]}-{value}" for key, value in self.varied.items()]
        return "-".join([self.method, *size, *varied])

    def of_seed(self, seed: int) -> Config:
        return replace(self.config, seed=seed)

    def folder(self, runs: Path, seed: int) -> Path:
        return runs / f"{self.name}-seed{seed}"


class _Only(NamedTuple):
    """What a plan says about one method, see `Plan`."""

    settings: dict[str, Any]
    grid: dict[str, list[Any]]


@dataclass(frozen=True)
class Plan:
    """The content of a comparison file.

        methods = ["at-fedavg", "gru-local 727k"]   the lines: a method, and its size if that is not 63k
        seeds = [1, 2, 3]
        like = "data"       start from the settings published for the data set (or "metr-la", "pems-bay")
        inductive = true    ... for those of the inductive experiment
        [grid]              settings with a list of values each: a line for every combination
        [[variants]]        another line for each method (or those named by `methods`) with other settings, a
                            `label` and the `group` of variants that it belongs to
        [only.METHOD]       settings of one method
        [only.METHOD.grid]  values of the grid for one method
        [quick]             settings for a quick check that everything works
        choose = "validation"  show validation errors, and the test error only of the line with the lowest

    Every other key is a setting for all lines.
    """

    methods: tuple[tuple[str, str], ...]
    seeds: tuple[int, ...]
    changes: dict[str, Any]
    source: Path
    like: str | None = None
    inductive: bool = False
    variants: tuple[dict[str, Any], ...] = ()
    choose: str = ""

    @classmethod
    def read(cls, path: Path) -> Plan:
        changes = read_changes(path)
        methods, seeds = changes.pop("methods", None), changes.pop("seeds", [1])
        if not isinstance(methods, list) or not methods or not all(isinstance(m, str) for m in methods):
            raise ConfigError("methods", f"{path} needs a list of methods")
        if not isinstance(seeds, list) or not seeds or not all(type(s) is int and s >= 0 for s in seeds):
            raise ConfigError("seeds", f"{path} needs a list of whole numbers from 0 on")
        like, inductive = changes.pop("like", None), changes.pop("inductive", False)
        if like not in (None, "data", *LIKES):
            raise ConfigError("like", f"no settings were published for {like!r}", ["data", *LIKES])
        if (choose := changes.pop("choose", "")) not in ("", "validation"):
            raise ConfigError("choose", f"{path} cannot choose by {choose!r}", ["validation"])
        variants = changes.pop("variants", [])
        if not isinstance(variants, list) or not all(isinstance(v, dict) for v in variants):
            raise ConfigError("variants", f"{path} needs variants as tables: [[variants]]")
        plan = cls(
            methods=tuple(map(_method_and_size, methods)),
            seeds=tuple(seeds),
            changes=changes,
            source=path,
            like=like,
            inductive=bool(inductive),
            variants=tuple(flat(v) for v in variants),
            choose=choose,
        )
        for key in plan._under("only."):
            if method_of(key.split(".")[0]).name not in [method for method, _ in plan.methods]:
                raise ConfigError(f"only.{key}", "the comparison has no such method", dict(plan.methods))
        cases = plan.cases()
        for key in TARGETS if choose else ():
            if len({case.config.setting(key) for case in cases}) > 1:
                problem = (
                    f"{path} cannot choose among lines that differ in it: their errors are of other targets"
                )
                raise ConfigError(key, problem)
        plan.quick().cases()
        return plan

    def quick(self) -> Plan:
        """One seed, and the settings under [quick]."""
        return replace(self.with_changes(self._under("quick.")), seeds=self.seeds[:1])

    def with_changes(self, changes: Mapping[str, Any]) -> Plan:
        """The plan with other settings for all lines, but not those in which its lines differ."""
        varied = {*PER_RUN, *self._under("grid.")}.union(*self.variants)
        varied |= {key for method, _ in self.methods for key in self._only(method).grid}
        for key in changes:
            if key in varied:
                raise ConfigError(key, f"{self.source.name} sets this for each of its lines")
        return replace(self, changes=self.changes | {f"all.{key}": value for key, value in changes.items()})

    def cases(self, data: Dataset | None = None) -> list[Case]:
        """The lines; `data` decides which published settings they start from, if the plan asks for that."""
        like = None if self.like is None else like_of(data, self.like)
        return [case for method in self.methods for case in self._cases(*method, like)]

    def with_methods(self, names: Sequence[str]) -> Plan:
        """The plan with only these of its methods: of all sizes, or of one, as in "gru-local 63k"."""
        there = {line: {line[0], " ".join(line)} for line in self.methods}
        for name in names:
            if not any(name in called for called in there.values()):
                raise ConfigError("methods", f"{self.source.name} has no method {name!r}", dict(self.methods))
        return replace(self, methods=tuple(line for line, called in there.items() if called & {*names}))

    def like_published(self, name: str) -> Plan:
        """The plan with the settings published for this data set, whatever the data are."""
        if name not in LIKES:
            raise ConfigError("like", f"no settings were published for {name!r}", LIKES)
        return replace(self, like=name)

    def _cases(self, method: str, size: str, like: Like | None) -> Iterator[Case]:
        sections = ("only.", "grid.", "quick.", "all.")
        changes = {key: v for key, v in self.changes.items() if not key.startswith(sections)}
        only = self._only(method)
        config = preset(method, size, like, self.inductive).with_changes(changes | only.settings)
        last = self._under("all.")
        grid = self._under("grid.") | only.grid
        for values in product(*grid.values()):
            settings = dict(zip(grid, values, strict=True))
            yield _case(method, size, config, settings, last)
        for variant in self.variants:
            named = [method_of(name).name for name in variant.get("methods", [method])]
            if method in named:
                label, group = (str(variant.get(key, "")) for key in ("label", "group"))
                settings = {key: v for key, v in variant.items() if key not in ("methods", "label", "group")}
                yield replace(_case(method, size, config, settings, last), label=label, group=group)

    def _only(self, method: str) -> _Only:
        """What the plan says about one method."""
        said = {}
        for key, value in self._under("only.").items():
            name, _, setting = key.partition(".")
            if method_of(name).name == method:
                said[setting] = value
        grid = {key.removeprefix("grid."): said.pop(key) for key in list(said) if key.startswith("grid.")}
        return _Only(said, grid)

    def _under(self, section: str) -> dict[str, Any]:
        return {
            key.removeprefix(section): value for key, value in self.changes.items() if key.startswith(section)
        }


@dataclass(frozen=True)
class Row:
    """One line of a comparison with its runs, one per seed."""

    case: Case
    runs: tuple[Run, ...]

    @property
    def tests(self) -> list[dict[str, Any]]:
        """The test event of each run."""
        return [run.test() for run in self.runs]

    @property
    def errors(self) -> list[Errors]:
        return [Errors.read(test["overall"]) for test in self.tests]

    @property
    def training_bytes(self) -> list[Bytes]:
        """The bytes that each run moved until its best round."""
        return [run.progress.best.training_bytes for run in self.runs]

    @property
    def validation(self) -> list[Errors]:
        """The validation errors of each run's best round."""
        return [run.progress.best.validation for run in self.runs]

    def median(self, figure: str, validation: bool = False) -> float:
        of_seeds = self.validation if validation else self.errors
        return float(statistics.median(getattr(errors, figure) for errors in of_seeds))


def chosen(rows: Sequence[Row]) -> Row:
    """The line with the lowest validation RMSE, over the readings that the loss is over; median of seeds."""
    return min(rows, key=lambda row: row.median(rows[0].case.config.data.metric, validation=True))


def runs_of(
    case: Case, seeds: Sequence[int], folder: Path, data: Dataset, source: Path, but_for: Sequence[str] = ()
) -> list[Run]:
    """Open or begin a run for each seed; settings in `but_for` may differ in a run that exists."""
    return [_run(case.folder(folder, seed), case.of_seed(seed), data, source, but_for) for seed in seeds]


def like_of(data: Dataset | None, name: str | None = "data") -> Like:
    """Whose published settings to use: those of `name`, or else of the network that the data are from, or
    else METR-LA's."""
    if name in LIKES:
        return name
    return (network_of(data) if data is not None else None) or "metr-la"


def network_of(data: Dataset) -> Like | None:
    """The network of the paper that the data are from, at least in part, by their name."""
    letters = re.sub("[^a-z]", "", data.name.lower())
    return next((like for like in LIKES if like.replace("-", "") in letters), None)


def ended_early(run: Run, case: Case) -> bool:
    """Whether a finished run would train longer with the rounds and patience of the plan."""
    wanted, rounds = case.config.training, len(run.progress.history)
    return rounds < wanted.rounds and run.progress.rounds_without_improvement < wanted.patience


def _method_and_size(text: str) -> tuple[str, str]:
    name, _, size = text.partition(" ")
    return method_of(name).name, size.strip() or "63k"


def _case(method: str, size: str, config: Config, settings: dict[str, Any], last: dict[str, Any]) -> Case:
    changed = config.with_changes(settings)
    varied = {key: v for key, v in settings.items() if config.setting(key) != changed.setting(key)}
    return Case(method, size, changed.with_changes(last), varied)


def _run(folder: Path, config: Config, data: Dataset, source: Path, but_for: Sequence[str] = ()) -> Run:
    """Open the run in a folder, or begin it."""
    if not (folder / "manifest.json").exists():
        _clear_beginning(folder)
        return Run.create(folder, config, data)
    run = Run.open(folder)
    keys = {*CIRCUMSTANCES, *but_for}
    if config.training.schedule == "cosine":  # the number of rounds determines the learning rates
        keys.remove("training.rounds")
    wanted = (config, _fitted(config, run))
    if not any(run.config.with_changes({key: w.setting(key) for key in keys}) == w for w in wanted):
        raise RunError(
            folder,
            f"was begun with other settings than {source} has now: move it away or choose another folder",
        )
    try:
        run.check_same_data(data)
    except DataError as error:
        raise RunError(
            folder, f"was begun with other readings: move it away or choose another folder ({error})"
        ) from error
    return run


def _fitted(config: Config, run: Run) -> Config:
    """These settings as a started run uses them: adapted to the number of windows."""
    if not run.started:
        return config
    return fit_to_windows(config, method_of(config.method), int(run.events()[0]["windows"]["train"]))


def _clear_beginning(folder: Path) -> None:
    """Remove what is left of a run whose process was killed while it was being created."""
    try:
        there = list(folder.iterdir()) if folder.is_dir() else []
        if {path.name for path in there} <= BEGINNING:
            for path in there:
                path.unlink()
    except OSError as error:
        raise StorageError(folder, error) from error
