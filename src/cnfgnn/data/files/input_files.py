"""Read the variables and covariates of a folder, and find out which variable is to be forecast.

    readings.csv            what is forecast; a long table may have a column for each of several variables
    variables/NAME.csv      another variable of the sensors, in the same formats
    covariates/NAME.csv     what is known ahead: a column per sensor, or one column that holds for all

Parquet and HDF files work as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cnfgnn.data.files.formats import read_readings, read_variables
from cnfgnn.data.files.text import shown
from cnfgnn.data.inputs import MOST_INPUTS, Input, InputNames, check_wanted, in_order
from cnfgnn.data.options import ReadingOptions
from cnfgnn.data.readings import UNNAMED, Readings
from cnfgnn.errors import ConfigError, DataError

VARIABLES, COVARIATES = "variables", "covariates"
SUFFIXES = (".csv", ".parquet", ".h5")
LONGEST_NAME = 64
NOT_IN_NAMES = ",="  # the settings that name inputs are lists of names and values


def has_variables(folder: Path) -> bool:
    """Whether a folder has files of variables."""
    return bool(_files(folder / VARIABLES))


def read_with_inputs(folder: Path, file: Path | None, options: ReadingOptions) -> Readings:
    """The readings of a folder, whose file of readings is `file`, with their further inputs."""
    in_file = {} if file is None else read_variables(file, options)
    variables, covariates = _files(folder / VARIABLES), _files(folder / COVARIATES)
    _check_names(folder, [*in_file, *variables, *covariates])
    target = _target(folder, in_file, variables, options)
    others = [name for name in (*in_file, *variables) if name != target]
    check_wanted([*others, *covariates], options)
    readings = in_file[target] if target in in_file else _only_variable(variables[target], options)
    readings = replace(readings, variable=target)
    inputs = [
        read_covariate(name, covariates[name], readings.ids, options)
        for name in filter(options.wants, covariates)
    ]
    for name in filter(options.wants, others):
        found = in_file[name] if name in in_file else _only_variable(variables[name], options, False)
        inputs.append(Input(name, False, _of_sensors(found, readings.ids)))
    if len(inputs) > MOST_INPUTS:
        problem = f"has {len(inputs)} variables and covariates, and at most {MOST_INPUTS} can be used"
        raise DataError(folder, f"{problem}: choose some with {options.hint('inputs', 'NAME,NAME')}")
    for one in inputs:
        _check_times(one, readings)
    if not inputs:
        return readings
    forecast = "" if target == UNNAMED else f"forecast: {target}; "
    note = f"{forecast}{InputNames.of(inputs)}"
    return replace(readings, others=in_order(inputs), notes=(*readings.notes, note))


def files_of_inputs(folder: Path, names: InputNames) -> dict[str, Path]:
    """The files of a folder that hold these inputs, by name; a variable in the file of readings has none."""
    files = _files(folder / VARIABLES)
    found = {name: files[name] for name in names.variables if name in files}
    files = _files(folder / COVARIATES)
    return found | {name: files[name] for name in names.covariates if name in files}


def expected_files(folder: Path, names: InputNames) -> dict[str, Path]:
    """The same if files cannot be read, or are gone: where they may be again."""
    places = dict.fromkeys(names.variables, folder / VARIABLES)
    places |= dict.fromkeys(names.covariates, folder / COVARIATES)
    files = {name: [place / f"{name}{suffix}" for suffix in SUFFIXES] for name, place in places.items()}
    return {name: next((one for one in found if one.exists()), found[0]) for name, found in files.items()}


def names_of_files(folder: Path) -> InputNames:
    """The inputs of a folder that have files of their own."""
    return InputNames(tuple(_files(folder / VARIABLES)), tuple(_files(folder / COVARIATES)))


def read_covariate(name: str, file: Path, ids: Sequence[str], options: ReadingOptions) -> Input:
    """A covariate of these sensors, from its file."""
    if options.refusals is not None:  # what is known ahead has times in the future
        options = replace(options, refusals=replace(options.refusals, latest=None))
    return _covariate(name, _only_variable(file, options, regular=False), ids)


def read_traffic(file: Path, options: ReadingOptions) -> Readings:
    """The readings of a file like METR-LA's, which has one variable and no further inputs."""
    if options.target not in ("", UNNAMED):
        raise ConfigError(options.key("target"), f"{file} has no variable {options.target!r}", [UNNAMED])
    return read_readings(file, options)


def _files(folder: Path) -> dict[str, Path]:
    """The files of a folder of inputs, by the names of the inputs."""
    files: dict[str, Path] = {}
    if not folder.is_dir():
        return files
    for path in sorted(folder.iterdir()):
        if path.suffix in SUFFIXES and not path.name.startswith("."):
            if path.stem in files:
                problem = f"holds {files[path.stem].name} and {path.name}, which have one name: keep one"
                raise DataError(folder, problem)
            files[path.stem] = path
    return files


def _check_names(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            problem = f"there are two inputs called {shown(name)}: rename one of the files or columns"
            raise DataError(folder, problem)
        if not name.isprintable() or any(mark in name for mark in NOT_IN_NAMES) or len(name) > LONGEST_NAME:
            problem = (
                f"{shown(name)} cannot be the name of a variable: it must have at most {LONGEST_NAME}"
                " characters, without commas and equals signs"
            )
            raise DataError(folder, problem)


def _target(
    folder: Path, in_file: Collection[str], variables: Collection[str], options: ReadingOptions
) -> str:
    """The variable to forecast: the one that is asked for, or else the only one of the file of readings."""
    candidates = [*in_file, *variables]
    if options.target:
        if options.target not in candidates:
            problem = f"{folder} has no variable {options.target!r}"
            raise ConfigError(options.key("target"), problem, candidates)
        return options.target
    choice = list(in_file) or candidates
    if len(choice) > 1:
        problem = f"{folder} holds several variables: choose the one to forecast"
        raise ConfigError(options.key("target"), problem, candidates)
    return choice[0]


def _only_variable(path: Path, options: ReadingOptions, regular: bool = True) -> Readings:
    """The one variable of a file of inputs."""
    found: Mapping[str, Readings] = read_variables(path, options, regular)
    if len(found) > 1:
        raise DataError(path, f"holds several variables ({', '.join(found)}): write a file for each")
    (readings,) = found.values()
    return readings


def _of_sensors(found: Readings, ids: Sequence[str]) -> Readings:
    """A column for each of these sensors, without values if the file has none."""
    place = {sensor: column for column, sensor in enumerate(found.ids)}
    if not place.keys() & set(ids):
        raise DataError(found.source, f"has none of the sensors of the readings, such as {shown(ids[0])}")
    values = np.full((len(found.times), len(ids)), np.nan, dtype=np.float32)
    for column, sensor in enumerate(ids):
        if sensor in place:
            values[:, column] = found.values[:, place[sensor]]
    return replace(found, ids=tuple(ids), values=values, missing=np.isnan(values))


def _covariate(name: str, found: Readings, ids: Sequence[str]) -> Input:
    if len(found.ids) == 1 and found.ids[0] not in ids:
        return Input(name, True, found, for_all=True)
    if not set(found.ids) & set(ids):
        problem = (
            f"its columns ({_some(found.ids)}) are no sensors of the readings: a covariate has a column per"
            " sensor, or a single one for all; write a file for each covariate"
        )
        raise DataError(found.source, problem)
    return Input(name, True, _of_sensors(found, ids))


def _some(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known[:3]) + (", ..." if len(known) > 3 else "")


def _check_times(one: Input, readings: Readings) -> None:
    if one.readings.utc != readings.utc:
        kinds = ("are in UTC", "have no time zone")
        own, other = kinds if one.readings.utc else kinds[::-1]
        problem = f"its times {own}, and those of the readings {other}: write both in the same way"
        raise DataError(one.readings.source, problem)
