"""What the README shows runs, and what it lists is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from cnfgnn.__main__ import NO_READER, STOPPED
from cnfgnn.algorithm.methods import ALIASES, METHODS
from cnfgnn.cli.main import app
from cnfgnn.errors import ConfigError, DataError, DivergedError, NodeError, RunError, StorageError

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert float(lines[0]) > 0
    assert lines[3] == "128 1000.0"


def test_every_method_is_in_the_table_with_what_it_can_do() -> None:
    table = [line for line in README.splitlines() if line.startswith("| `")]
    for name, method in METHODS.items():
        (row,) = [line for line in table if f"`{name}`" in line.split("|")[1]]
        names = re.findall(r"`([a-z-]+)`", row.split("|")[1])
        place = [n for n in names if n not in ALIASES].index(name)
        federated, new = ([w.strip() for w in cell.split(",")] for cell in row.split("|")[3:5])
        assert federated[min(place, len(federated) - 1)] == ("yes" if method.federated else "no")
        assert new[min(place, len(new) - 1)] == ("yes" if method.inductive else "no")


def test_every_command_it_names_exists() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for name in re.findall(r"cnfgnn (train|forecast|evaluate|report|reproduce|runs|compare|data)\b", README):
        assert name in commands
    for target in re.findall(r"`?make (\w+)", README):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


def test_exit_codes_are_those_of_the_errors() -> None:
    codes = {
        error.exit_code
        for error in (ConfigError, DataError, NodeError, RunError, StorageError, DivergedError)
    }
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    assert documented == codes | {0, STOPPED, NO_READER}


def test_links_lead_somewhere() -> None:
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
