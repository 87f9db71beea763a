"""The documentation builds without warnings, its examples run, and what it lists is what the code has."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args
from unittest.mock import MagicMock

import pytest

import cnfgnn
from cnfgnn import __main__, errors
from cnfgnn.config import outside
from cnfgnn.exit_codes import EXIT_CODES

ROOT = Path(__file__).parents[1]
API = (ROOT / "docs" / "api.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", API, re.DOTALL | re.MULTILINE)
NOTEBOOKS = ("own-data", "comparing-methods", "what-a-server-sees")
LITERALS = re.findall(r"^\| `(\w+)` \| (.*?) \|", API, re.MULTILINE)


@pytest.mark.slow
def test_the_examples_of_the_api_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mlflow = MagicMock()  # not installed
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    names: dict[str, object] = {}
    assert EXAMPLES
    for example in EXAMPLES:
        exec(compile(example, "docs/api.md", "exec"), names)
    outside._registered.clear()
    assert mlflow.log_params.call_args.args[0]["training.rounds"] == 2
    assert [call.kwargs["step"] for call in mlflow.log_metrics.call_args_list] == [1, 2]


def test_the_first_example_is_the_readmes_which_runs_too() -> None:
    (example,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "getting-started.md").read_text(), re.DOTALL
    )
    readme = (ROOT / "README.md").read_text()
    for line in example.splitlines():
        assert line.split("  #")[0] in readme


def test_every_public_name_is_documented() -> None:
    described = re.findall(r"^\.\. (?:auto\w+|py:data):: cnfgnn\.(\w+)", API, re.MULTILINE)
    documented = {*described, *(name for name, _ in LITERALS)}
    assert documented == {*cnfgnn.__all__} - {"__version__"}


def test_every_public_name_is_used_in_an_example() -> None:
    used = set(re.findall(r"cnfgnn\.(\w+)", "".join(EXAMPLES)))
    literals = {name for name, _ in LITERALS}
    assert used >= {*cnfgnn.__all__} - literals


@pytest.mark.parametrize(("name", "values"), LITERALS)
def test_the_values_of_literals_are_those_of_the_code(name: str, values: str) -> None:
    assert tuple(re.findall(r"`([^`]+)`", values)) == get_args(getattr(cnfgnn, name))


def test_every_public_class_and_function_has_a_docstring() -> None:
    for name in cnfgnn.__all__:
        thing = getattr(cnfgnn, name)
        if callable(thing) and getattr(thing, "__module__", "").startswith("cnfgnn"):
            assert (thing.__doc__ or "").strip(), name
            assert not thing.__doc__.startswith(f"{name}("), f"{name}: only what dataclasses write"


def test_the_exit_codes_are_those_that_the_code_ends_with() -> None:
    kinds = [error for error in vars(errors).values() if isinstance(error, type)]
    codes = {kind.exit_code for kind in kinds if issubclass(kind, cnfgnn.CnfgnnError)}
    assert set(EXIT_CODES) == codes - {1} | {0, __main__.STOPPED, __main__.NO_READER}


def test_the_figures_in_pictures_stand_on_the_pages() -> None:
    pages = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in ("results", "reproduction"))
    drawn = (ROOT / "studies" / "pictures.toml").read_text()
    assert set(tomllib.loads(drawn)) == {"bytes", "graph"}
    for number in re.findall(r"\d+\.\d+", re.sub("#.*", "", drawn)):
        assert number in pages, number


@pytest.mark.chaos  # make docs, which is part of the gate, builds it with warnings as errors, too
def test_the_site_builds_without_warnings_and_needs_no_network(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    site = ROOT / "site"
    if not is_current(site / "index.html"):
        site = tmp_path / "site"
        options = ["--fail-on-warning", "--keep-going", "--quiet", "-d", str(tmp_path / "doctrees")]
        command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(site)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    pages = {page.name: page.read_text() for page in site.glob("*.html")}
    assert {page.with_suffix(".html").name for page in (ROOT / "docs").glob("*.md")} <= set(pages)
    for name, text in pages.items():
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"([^\"]*)", text)
        loaded += re.findall(r"<link[^>]*rel=\"(?:stylesheet|preload)\"[^>]*href=\"([^\"]*)", text)
        assert not [address for address in loaded if "//" in address], name
    for key in settings():
        assert key in pages["settings.html"], key
    for notebook in NOTEBOOKS:
        assert re.search(r"<img[^>]*_images/.*?\.png", pages[f"{notebook}.html"]), notebook
    assert len(list((site / "notebooks").glob("*.ipynb"))) == len(NOTEBOOKS)
    codes = re.findall(r"<td><p>(\d+)</p></td>", pages["exit-codes.html"])
    assert [int(code) for code in codes] == list(EXIT_CODES)


def is_current(page: Path) -> bool:
    """Whether `make docs`, which takes warnings as errors, has built it from the files as they are."""
    if not page.exists():
        return False
    sources = [
        *(ROOT / "docs").rglob("*"),
        *(ROOT / "examples").glob("*.py"),
        *(ROOT / "src").rglob("*.py"),
        ROOT / "pyproject.toml",
    ]
    return page.stat().st_mtime > max(source.stat().st_mtime for source in sources)


def settings() -> list[str]:
    """The key of every setting, such as training.rounds."""
    keys = []
    for name, value in cnfgnn.Config().as_dict().items():
        keys += [f"{name}.{key}" for key in value] if isinstance(value, dict) else [name]
    return keys


def test_the_version_is_the_same_everywhere() -> None:
    version = cnfgnn.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## {re.escape(version)} \(", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", ["docs/algorithm.md", "docs/performance.md", "CONTRIBUTING.md", "README.md"])
def test_files_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|md|toml))`", (ROOT / page).read_text())
    for path in named:
        if "NAME" not in path:
            assert (ROOT / path).is_file() or (ROOT / "src" / "cnfgnn" / path).is_file(), path
