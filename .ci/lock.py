"""Write locked/*.txt: the pins of constraints.txt with the hashes of their files, for pip's --require-hashes.

`make lock` runs it in the development environment, which tells what each part needs besides `base`.

PyTorch is left out, and with it what it alone brings (CUDA libraries, Triton, setuptools): its builds for a
CPU and for CUDA have the same version and different files, and people choose between them. It is installed
after the rest, by its version. pyhocon exists as source alone: pip fetches setuptools to build it, without a
hash.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
LIBC = [f"manylinux{v}" for v in ("_2_28", "_2_27", "_2_24", "_2_17", "2014", "2010", "1")]
EXTRAS = ("live", "federation", "dev")
# What builds the package, which is not in the environment; `triton` is only needed by `make test-kernels`.
BUILD = {"hatchling", "editables", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers"}
KERNELS = "triton==3.9.0"


def main() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if "==" in line and not line.startswith("torch==")] + [KERNELS]
    hashes = hashes_of(pins)
    base = needed("cnfgnn", "")
    parts = {"base": base, "build": BUILD, "kernels": {"triton"}}
    for extra in EXTRAS:
        parts[extra] = needed("cnfgnn", extra) - base
    parts["dev"] -= parts["live"] | parts["federation"]
    for part, names in parts.items():
        chosen = [pin for pin in pins if canonical(pin.split("==")[0]) in names]
        lines = [
            " \\\n    ".join([pin, *(f"--hash=sha256:{x}" for x in sorted(hashes[pin]))]) for pin in chosen
        ]
        (ROOT / "locked" / f"{part}.txt").write_text("\n".join(["# Written by `make lock`.", *lines, ""]))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(name: str, extra: str) -> set[str]:
    """The names of everything that an installed package needs, also by way of others."""
    found: set[str] = set()
    waiting = [(name, extra)]
    while waiting:
        package, wanted = waiting.pop()
        for line in requires(package) or ():
            requirement = Requirement(line)
            of_all = requirement.marker is None or requirement.marker.evaluate({"extra": wanted})
            for chosen in {"", *requirement.extras} if of_all else ():
                entry = canonical(requirement.name), chosen
                if entry[0] != "cnfgnn" and (entry[0] in found and not chosen):
                    continue
                found.add(entry[0])
                waiting.append(entry)
    return found - {"cnfgnn"}


def hashes_of(pins: list[str]) -> dict[str, set[str]]:
    """The hashes of the files that pip takes for each of the pythons and machines."""
    by_name = {canonical(pin.split("==")[0]): pin for pin in pins}
    found: dict[str, set[str]] = {pin: set() for pin in pins}
    with tempfile.TemporaryDirectory() as folder:
        wanted, report = Path(folder, "wanted.txt"), Path(folder, "report.json")
        wanted.write_text("\n".join(pins))
        for python in PYTHONS:
            for machine in MACHINES:
                platforms = [f"--platform={libc}_{machine}" for libc in LIBC]
                command = ["install", "--dry-run", "--ignore-installed", "--quiet", "--no-deps", *platforms]
                command += [f"--python-version={python}", f"--target={folder}", f"--report={report}"]
                subprocess.run([sys.executable, "-m", "pip", *command, "-r", str(wanted)], check=True)
                for one in json.loads(report.read_text())["install"]:
                    pin = by_name[canonical(one["metadata"]["name"])]
                    found[pin].add(one["download_info"]["archive_info"]["hashes"]["sha256"])
    return found


if __name__ == "__main__":
    main()
