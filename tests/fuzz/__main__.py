"""Damage good input at random, for so many seconds each, and read it: whatever comes from outside is read or
refused in a sentence, never anything else.

    python -m tests.fuzz [--seconds 20] [--seed N] [--only csv]

An input that breaks a reader is written to `fuzz-TARGET.bin`, and the command ends with exit code 1.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from pathlib import Path
from random import Random

from tests.fuzz.targets import TARGETS, damaged


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--only", choices=sorted(TARGETS))
    chosen = parser.parse_args()
    broken = 0
    for name, target in TARGETS.items():
        if chosen.only not in (None, name):
            continue
        random, tried, end = Random(f"{chosen.seed} {name}"), 0, time.monotonic() + chosen.seconds
        while time.monotonic() < end:
            content, tried = damaged(random, target.good), tried + 1
            try:
                target.read(content)
            except target.refusals:
                continue
            except Exception as problem:
                file = Path(f"fuzz-{name}.bin")
                file.write_bytes(content)
                print(f"{name}: {type(problem).__name__}: {problem}; see {file} (--seed {chosen.seed})")
                broken = 1
                break
        print(f"{name}: {tried} inputs", flush=True)
    return broken


if __name__ == "__main__":
    sys.exit(main())
