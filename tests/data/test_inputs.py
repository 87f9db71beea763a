"""Other variables and covariates: their files, which values a forecast sees, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from cnfgnn.config.settings import Config
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.files.folder import load
from cnfgnn.data.inputs import (
    InputCounts,
    InputNames,
    ending_covariates,
    used_inputs,
    with_inputs,
)
from cnfgnn.data.prepared_series import PreparedSeries
from cnfgnn.data.quality import findings
from cnfgnn.data.series import Scaler, Series
from cnfgnn.data.source import open_data
from cnfgnn.data.synthetic.city import city
from cnfgnn.data.windows import Windows
from cnfgnn.errors import ConfigError, DataError

LONG = """time,station,speed,flow
2024-01-01 00:00,a,60,900
2024-01-01 00:00,b,50,800
2024-01-01 01:00,a,61,
2024-01-01 01:00,b,51,810
2024-01-01 02:00,a,62,920
2024-01-01 02:00,b,52,820
"""
WIDE = """time,a,b
2024-01-01 00:00,60,50
2024-01-01 01:00,61,51
2024-01-01 02:00,62,52
"""
CPU = torch.device("cpu")


def folder(path: Path, **files: str) -> Path:
    """A folder of these csv files, a double underscore for each slash."""
    (path / "edges.csv").write_text("from,to,weight\na,b,1\n")
    for name, text in files.items():
        file = path / (name.replace("__", "/") + ".csv")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return path


# ---- files ----------------------------------------------------------------------------------------------


def test_the_columns_of_a_long_table_are_variables_and_one_is_forecast(tmp_path: Path) -> None:
    data = load(folder(tmp_path, readings=LONG), target="speed")
    assert data.readings.values.tolist() == [[60, 50], [61, 51], [62, 52]]
    (flow,) = data.readings.others
    assert (flow.name, flow.known_ahead, flow.readings.ids) == ("flow", False, ("a", "b"))
    assert np.isnan(flow.readings.values[1, 0])
    assert "forecast: speed; variables: flow" in data.readings.notes
    other = load(tmp_path, target="flow")
    assert other.readings.values[0].tolist() == [900, 800]
    assert InputNames.of(other.readings.others).variables == ("speed",)


def test_ids_that_are_numbers_make_a_long_table_of_several_variables_too(tmp_path: Path) -> None:
    data = load(
        folder(
            tmp_path, readings=LONG.replace("a,", "7,").replace("b,", "8,"), edges="from,to,weight\n7,8,1\n"
        ),
        target="speed",
    )
    assert data.readings.ids == ("7", "8")
    assert InputNames.of(data.readings.others) == (("flow",), ())


def test_several_variables_without_a_choice_are_listed_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^data.target: .* holds several variables: choose the one to forecast \(valid: speed, flow\)$",
    ):
        load(folder(tmp_path, readings=LONG))
    with pytest.raises(ConfigError, match=r"^data.target: .* has no variable 'sped' \(valid: speed, flow\)$"):
        load(tmp_path, target="sped")


def test_variables_may_have_files_of_their_own_and_need_no_file_of_readings(tmp_path: Path) -> None:
    flow = WIDE.replace("60", "900")
    data = load(folder(tmp_path, readings=WIDE, variables__flow=flow))
    assert data.readings.values[0].tolist() == [60, 50]
    assert data.readings.others[0].readings.values[0].tolist() == [900, 50]
    turned = load(tmp_path, target="flow")
    assert turned.readings.values[0].tolist() == [900, 50]
    assert InputNames.of(turned.readings.others).variables == ("readings",)
    (tmp_path / "readings.csv").rename(tmp_path / "variables" / "speed.csv")
    assert load(tmp_path, target="speed").readings.values[0].tolist() == [60, 50]
    with pytest.raises(ConfigError, match=r"valid: flow, speed"):
        load(tmp_path)


def test_a_covariate_has_a_column_per_sensor_or_one_for_all(tmp_path: Path) -> None:
    holiday = "day,holiday\n2024-01-01,1\n2024-01-02,0\n"
    rain = "time;b;c\n01.01.2024 00:30;0,5;1\n13.01.2024 01:30;0,7;1\n"
    data = load(folder(tmp_path, readings=WIDE, covariates__holiday=holiday, covariates__rain=rain))
    first, second = data.readings.others
    assert (first.name, first.for_all, first.known_ahead) == ("holiday", True, True)
    assert (second.name, second.for_all, second.readings.ids) == ("rain", False, ("a", "b"))
    assert np.isnan(second.readings.values[:, 0]).all()
    assert data.select(["b"]).readings.others[1].readings.values[:, 0].tolist() == pytest.approx([0.5, 0.7])


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            {"variables__flow": "time,x\n2024-01-01,1\n"},
            "has none of the sensors of the readings, such as 'a'",
        ),
        (
            {"covariates__w": "time,rain,wind\n2024-01-01,1,1\n"},
            "rain, wind.* are no sensors .* write a file for each",
        ),
        (
            {"covariates__w": "time,rain\n2024-01-01T00:00Z,1\n"},
            "its times are in UTC, and those of the readings have",
        ),
        ({"covariates__w": "time,rain\n2024-01-01,wet\n"}, "line 2, column 'rain': 'wet' is not a number"),
        ({"variables__x": WIDE, "covariates__x": WIDE}, "two inputs called 'x'"),
        ({"variables__a=b": WIDE}, "cannot be the name of a variable"),
        ({"variables__x": LONG}, r"holds several variables \(speed, flow\): write a file for each"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_sentence(
    tmp_path: Path, files: dict[str, str], says: str
) -> None:
    with pytest.raises(DataError, match=says):
        load(folder(tmp_path, readings=WIDE, **files))


def test_inputs_can_be_chosen_and_those_left_out_are_not_read(tmp_path: Path) -> None:
    folder(tmp_path, readings=WIDE, variables__flow=WIDE, covariates__rain="nonsense")
    assert InputNames.of(load(tmp_path, inputs="flow").readings.others) == (("flow",), ())
    assert load(tmp_path, inputs="none").readings.others == ()
    with pytest.raises(
        ConfigError,
        match=r"^data.inputs: there is no variable or covariate 'rian' \(valid: all, none, flow, rain\)$",
    ):
        load(tmp_path, inputs="rian")


def test_what_a_city_writes_is_read_back(tmp_path: Path) -> None:
    data = city(3, 0.5, inputs=True)
    write_folder(data, tmp_path)
    found = load(tmp_path)
    assert InputNames.of(found.readings.others) == (("flow",), ("rain",))
    for one, other in zip(data.readings.others, found.readings.others, strict=True):
        np.testing.assert_array_equal(one.readings.values, other.readings.values)
        np.testing.assert_array_equal(one.readings.times, other.readings.times)
        assert one.for_all == other.for_all
    assert findings(found) == ()
    for file in (tmp_path / "readings.csv", *tmp_path.glob("*/*.csv")):
        pd.read_csv(file, index_col=0, parse_dates=True).to_parquet(file.with_suffix(".parquet"))
        file.unlink()
    assert len(load(tmp_path).readings.others) == 2


def test_a_run_takes_the_inputs_that_it_was_trained_with_and_names_one_that_is_missing() -> None:
    readings = city(3, 0.5, inputs=True).readings
    only = with_inputs(readings, InputNames(("flow",)), "run")
    assert InputNames.of(only.others) == (("flow",), ())
    with pytest.raises(DataError, match="has no covariate 'rain', which run was trained with: add it"):
        with_inputs(only, InputNames(("flow",), ("rain",)), "run")


def test_the_inputs_of_the_city_can_be_left_out() -> None:
    config = Config().with_changes({"city.sensors": 3, "city.days": 0.2, "city.inputs": True})
    config = config.with_changes({"model.encoder": "perceptron"})
    readings = open_data(config).readings

    def used(**changes: str) -> list[str]:
        changed = config.with_changes({key.replace("__", "."): value for key, value in changes.items()})
        return [one.name for one in used_inputs(readings, changed).others]

    assert used() == ["flow", "rain"]
    assert used(data__inputs="none") == []
    assert used(data__inputs="rain") == ["rain"]
    assert used(model__encoder="gru") == []
    with pytest.raises(ConfigError, match=r"^data.inputs: .*'wind' \(valid: all, none, flow, rain\)"):
        used(data__inputs="wind")


def test_rain_slows_the_city_down_and_is_forecast_a_day_ahead() -> None:
    data = city(6, 6, seed=3, inputs=True)
    rain = next(one for one in data.readings.others if one.name == "rain")
    seconds = data.readings.seconds
    heavy = rain.at(seconds).values[0] > 2.5
    night = (data.readings.time_of_day < 0.25) & ~np.isnan(data.readings.values).any(axis=1)
    dry = data.readings.values[night & (rain.at(seconds).values[0] == 0)].mean()
    assert data.readings.values[night & heavy].mean() < dry - 4
    assert rain.known_until is not None
    assert rain.known_until >= int(seconds[-1]) + 86_400 - 3600


# ---- values ---------------------------------------------------------------------------------------------


def test_at_any_time_an_input_has_its_newest_value(tmp_path: Path) -> None:
    """Also with steps of its own: before the first value it is unknown, after the last it stays."""
    rain = "time,rain\n2024-01-01 00:30,0.5\n2024-01-01 01:00,\n2024-01-01 01:30,0.25\n"
    data = load(folder(tmp_path, readings=WIDE, covariates__rain=rain))
    (one,) = data.readings.others
    values = one.at(data.readings.seconds).values
    np.testing.assert_array_equal(values, [[np.nan, 0.5, 0.25]])
    end = int(data.readings.seconds[-1])
    assert ending_covariates(data.readings, end) == []
    assert ending_covariates(data.readings, end + 1) == [
        "covariate rain is not known from 2024-01-01 02:00:00 on, so its last value is used"
    ]


def prepared(values: dict[str, np.ndarray]) -> PreparedSeries:
    """Six steps of two nodes, two of history and two ahead; `values` are (T n) of both inputs."""
    data = city(2, 6 / 288, inputs=True, dropout=0.0)
    others = []
    for one in data.readings.others:
        found = replace(
            data.readings, values=values[one.name].astype(np.float32), missing=np.isnan(values[one.name])
        )
        others.append(replace(one, readings=found, for_all=False))
    series = Series.of(replace(data.readings, others=tuple(others)))
    none = np.zeros(0, dtype=np.int64)
    windows = Windows({"train": np.array([0, 1]), "validation": none, "test": np.array([2])}, 2, 2)
    return PreparedSeries(
        series, Scaler(0.0, 1.0), "masked", windows, torch.float64, CPU, inputs=InputCounts(1, 1)
    )


def test_a_forecast_sees_the_past_of_variables_and_covariates_ahead_each_on_its_own_scale() -> None:
    steps = np.arange(6.0)[:, None]
    data = prepared({"flow": np.hstack([steps, 10 * steps]), "rain": np.hstack([steps % 2, 7 - 0 * steps])})
    batch = data.batch("test", slice(None))
    assert batch.others is not None
    assert batch.others.shape == (2, 1, InputCounts(1, 1).width(2, 2))
    std = (2 / 3) ** 0.5  # of 0, 1, 2, the rows that training windows take as input
    np.testing.assert_allclose(batch.others[:, 0, :2], [[1 / std, 2 / std]] * 2)
    of_rain = (np.array([1.0, 0.0, 1.0]) - 1 / 3) / (2 / 9) ** 0.5
    np.testing.assert_allclose(batch.others[0, 0, 2:], of_rain)
    assert (batch.others[1, 0, 2:] == 0).all()  # it never changed in training
    assert batch.rows(slice(1, 2)).others.shape == (1, 1, 5)  # type: ignore[union-attr]


def test_what_is_unknown_is_the_mean_and_what_is_absurd_is_cut_off() -> None:
    flow = np.array([[np.nan, np.nan], [1, 0], [2, 1], [9e9, 0], [3, 1], [4, 1]])
    data = prepared({"flow": flow, "rain": np.ones((6, 2))})
    first = data.batch("train", slice(0, 1))
    last = data.batch("test", slice(None))
    assert first.others is not None
    assert last.others is not None
    assert first.others[0, 0, 0] == 0
    assert last.others[0, 0, 1] == 10.0


def test_another_number_of_inputs_than_the_model_takes_is_refused() -> None:
    series = Series.of(city(2, 0.1, inputs=True).readings)
    windows = Windows.of(series.values.shape[1], 2, 2)
    with pytest.raises(
        DataError, match="there are 1 variables and 1 covariates, and the model takes 2 and 0"
    ):
        PreparedSeries(
            series, Scaler(0.0, 1.0), "masked", windows, torch.float64, CPU, inputs=InputCounts(2, 0)
        )
