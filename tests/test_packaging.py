"""What a wheel is built from is complete, and every dependency states the lowest version that works."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "cnfgnn"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_folder_with_modules_is_a_package() -> None:
    for folder in {path.parent for path in PACKAGE.rglob("*.py")}:
        assert (folder / "__init__.py").is_file(), folder


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="this is no git checkout"
)
def test_no_file_of_the_package_is_ignored() -> None:
    """Wheels and ruff leave out what .gitignore names."""
    files = [str(path) for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    command = ["git", "check-ignore", "--no-index", "--stdin"]
    done = subprocess.run(command, cwd=ROOT, input="\n".join(files), capture_output=True, text=True)
    assert done.stdout == ""


def test_the_lowest_versions_name_every_dependency_but_pytorch() -> None:
    pins = runpy.run_path(str(ROOT / ".ci" / "lowest.py"))["lowest"]()
    names = {pin.split("==")[0] for pin in pins}
    extras = PROJECT["optional-dependencies"]
    needed = [*PROJECT["dependencies"], *extras["federation"], *extras["live"]]
    assert names == {requirement.split(">")[0] for requirement in needed} - {"torch"}
    assert "numpy" in names


def test_what_is_installed_by_hash_has_the_versions_of_the_constraints() -> None:
    def pins(path: Path) -> set[str]:
        return set(re.findall(r"^[\w.-]+==[\w.]+", path.read_text(), re.MULTILINE))

    locked = {path.stem: pins(path) for path in (ROOT / "locked").glob("*.txt")}
    for part, found in locked.items():
        text = (ROOT / "locked" / f"{part}.txt").read_text()
        assert len(re.findall(r"==[\w.]+ \\\n    --hash=sha256:", text)) == len(found), part
    kernels = locked.pop("kernels")
    left_out = pins(ROOT / "constraints.txt") - set().union(*locked.values())
    assert set().union(*locked.values()) <= pins(ROOT / "constraints.txt"), "run make lock"
    assert {pin.split("==")[0] for pin in left_out} == {"torch", "lightgbm", "scipy"}, "run make lock"
    assert len(kernels) == 1
