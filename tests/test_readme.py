"""The README's example runs; its commands, all links and the table of methods agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from cnfgnn.algorithm.methods import ALIASES, METHODS
from cnfgnn.cli.main import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert float(lines[0]) > 0
    assert lines[3] == "128 1000.0"


def test_every_method_is_in_the_table_with_what_it_can_do() -> None:
    page = (ROOT / "docs" / "algorithm.md").read_text()
    table = [line for line in page.splitlines() if line.startswith("| `")]
    for name, method in METHODS.items():
        (row,) = [line for line in table if f"`{name}`" in line.split("|")[1]]
        names = re.findall(r"`([a-z-]+)`", row.split("|")[1])
        place = [n for n in names if n not in ALIASES].index(name)
        federated, new = ([w.strip() for w in cell.split(",")] for cell in row.split("|")[3:5])
        assert federated[min(place, len(federated) - 1)] == ("yes" if method.federated else "no")
        assert new[min(place, len(new) - 1)] == ("yes" if method.inductive else "no")


def test_every_command_it_names_exists() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for name in re.findall(
        r"cnfgnn (train|forecast|evaluate|report|reproduce|runs|compare|data|demo|federation)\b", README
    ):
        assert name in commands
    for target in re.findall(r"`?make (\w+)", README):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


def test_links_lead_somewhere() -> None:
    at_the_top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    for document in (*at_the_top, *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
