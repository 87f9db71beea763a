"""The guarantee in words: sizes and times that suit the blur, and numbers rounded to the safe side."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnfgnn.privacy.explanation import (
    Measures,
    as_json,
    caveats,
    default_changes,
    default_durations,
    epsilon_text,
    explain,
    mu_text,
    share,
    time_span,
)

MPH = Measures("mph", 300)


def test_the_guarantee_is_one_sentence_with_the_blur_and_its_unit() -> None:
    (guarantee,) = explain({"": 5.0}, MPH)
    assert guarantee.sentence.startswith(
        "The server learns at most what it would learn if you handed it your readings with noise of 5 mph"
        " added"
    )
    assert "a standard deviation of 5 mph" in guarantee.about_the_noise


def test_without_blur_nothing_is_promised() -> None:
    guarantees = explain({"": 0.0}, MPH)
    assert guarantees[0].sentence.startswith("Nothing is guaranteed without a blur")
    assert guarantees[0].rows == ()
    assert caveats(guarantees) == {}


def test_a_change_of_readings_without_blur_has_no_bound() -> None:
    (guarantee,) = explain({"": 0.0}, MPH, changes=[1.0], durations=[1])
    (row,) = as_json([guarantee], MPH)["guarantees"][0]["rows"]
    assert (row["mu"], row["epsilon"], row["detection"]) == (None, None, 1.0)
    assert row["verdict"] == "not hidden"
    assert guarantee.hidden_changes == [0.0]


def test_sites_with_the_same_blur_share_a_guarantee_and_the_least_protected_come_first() -> None:
    guarantees = explain({"north": 5.0, "south": 2.0, "west": 5.0, "east": 0.0}, MPH)
    assert [(g.sigma, g.sites) for g in guarantees] == [
        (0.0, ("east",)),
        (2.0, ("south",)),
        (5.0, ("north", "west")),
    ]
    assert guarantees[0].rows == ()
    for guarantee in guarantees[1:]:  # the same changes, so that the tables can be compared
        assert [row.change for row in guarantee.rows[::5]] == [0.4, 2.0, 4.0, 8.0]
    assert "the squares of their mu add up" in caveats(guarantees)["Several sensors add up"]
    assert "squares" not in caveats(guarantees[2:])["Several sensors add up"]


def test_what_is_visible_what_adds_up_and_what_is_told_are_named() -> None:
    told = " ".join(caveats(explain({"": 5.0}, MPH)).values())
    for words in (
        "Which readings are missing",
        "names",
        "times",
        "how fast your site answers",
        "a jam of an hour",
        "4 sensors for 3 readings each count as 12 readings",
        "averages a part of the noise away",
        "reports only when its reading changes tells by its gaps",
        "Two federations with two private folders have two copies of the same truth",
        "blurred once",
        "tell_errors",
        "blur of 0",
    ):
        assert words in told


def test_all_is_in_the_json_and_json_can_write_it() -> None:
    told = json.loads(json.dumps(as_json(explain({"": 5.0}, MPH, [10.0], [12]), MPH), allow_nan=False))
    assert (told["unit"], told["step_seconds"], told["delta"]) == ("mph", 300, 1e-6)
    (row,) = told["guarantees"][0]["rows"]
    assert row["mu"] == pytest.approx(2 * 12**0.5)
    assert (row["change"], row["readings"], row["seconds"], row["verdict"]) == (10.0, 12, 3600, "not hidden")
    assert told["caveats"][0].startswith("What stays visible. Which readings are missing")


def test_sizes_suit_the_blur() -> None:
    assert default_changes(5.0) == (1.0, 5.0, 10.0, 20.0)
    assert default_changes(0.3) == (0.06, 0.3, 0.6, 1.2)
    assert default_changes(0.0) == ()


@pytest.mark.parametrize(
    ("step", "durations"),
    [
        (None, (1, 3, 12, 72, 288)),
        (300, (1, 3, 12, 72, 288)),
        (900, (1, 4, 24, 96, 672)),
        (3600, (1, 6, 24, 168, 672)),
        (86400, (1, 7, 28)),
        (420, (1, 2, 9, 51, 206)),
        (10**7, (1,)),
    ],
)
def test_durations_suit_the_time_between_readings(step: float | None, durations: tuple[int, ...]) -> None:
    assert default_durations(step) == durations


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (30, "30 s"),
        (0.5, "0.5 s"),
        (300, "5 min"),
        (5400, "1 h 30 min"),
        (86400, "1 day"),
        (7 * 86400, "7 days"),
        (90061, "1 day 1 h 1 min 1 s"),
    ],
)
def test_time_spans(seconds: float, text: str) -> None:
    assert time_span(seconds) == text


def test_without_a_step_an_event_lasts_readings() -> None:
    assert [Measures().lasting(readings) for readings in (1, 2, 1440)] == [
        "1 reading",
        "2 readings",
        "1,440 readings",
    ]
    assert Measures().amount(5.0) == "5"


@given(st.floats(0.5, 0.99))
def test_a_probability_is_never_shown_as_less(detection: float) -> None:
    shown = int(share(detection).removesuffix(" %"))
    assert 100 * detection - 1e-6 <= shown < 100 * detection + 1


@given(st.floats(1e-9, 1e8))
def test_an_epsilon_is_never_shown_as_less(epsilon: float) -> None:
    shown = float(epsilon_text(epsilon).replace(",", ""))
    assert epsilon <= shown <= 1.02 * epsilon + 0.01


def test_what_has_no_bound_says_so() -> None:
    assert (epsilon_text(float("inf")), mu_text(float("inf"))) == ("no bound", "no bound")
    assert (share(1.0), share(0.5)) == ("over 99 %", "50 %")
    assert [mu_text(mu) for mu in (0.012, 0.2, 67.88)] == ["0.012", "0.20", "67.88"]
