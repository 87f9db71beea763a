"""A month of live steps at speed: whether memory, files, the database and the time of a restart stay bounded.

Every row is sent with POST /readings and waited for, as in `live.py`. At four points the service's memory and
its folder are measured; then it is stopped and started again, on the same readings.

    python benchmarks/live_month.py                             # 24 sensors, 8,640 steps of five minutes
    python benchmarks/live_month.py --shape 5 8 --steps 40 --json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cnfgnn.errors import CnfgnnError
from live import MIB, events, latencies, started, trained_run
from shapes import OneSentence

POINTS = 4  # at which it is measured


def measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What was measured at each point."""
    found = []
    with tempfile.TemporaryDirectory() as parent:
        run, data = trained_run(Path(parent), *options.shape, options.steps)
        done = 0
        for point in range(POINTS + 1):
            begun = time.perf_counter()
            with started(run, data) as service:
                restart = time.perf_counter() - begun
                until = options.steps * point // POINTS
                first = service.begun_with
                latencies(service, range(first + done, first + until), events(service.place))
                done = until
                files = [file for file in (run.folder / "live").rglob("*") if file.is_file()]
                found.append(
                    {
                        "steps": done,
                        "start_s": restart,
                        "memory_mib": service.memory(),
                        "database_mib": _size([f for f in files if f.name == "live.sqlite"]),
                        "log_mib": _size([f for f in files if f.name.startswith("live.sqlite-")]),
                        "files": len(files),
                    }
                )
    return found


def _size(files: list[Path]) -> float:
    return sum(file.stat().st_size for file in files) / MIB


def arguments() -> argparse.Namespace:
    parser = OneSentence(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=2, default=[24, 100], metavar=("SENSORS", "EDGES"))
    parser.add_argument("--steps", type=int, default=8640, help="steps that are played in all")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    options = parser.parse_args()
    if options.steps < POINTS:
        parser.error(f"argument --steps: at least {POINTS}, not {options.steps}")
    return options


def main() -> None:
    options = arguments()
    try:
        results = measured(options)
    except CnfgnnError as problem:
        print(f"live_month.py: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
    print("| steps so far | start s | memory MiB | database MiB | its log MiB | files |")
    print("|---|---|---|---|---|---|")
    for row in results:
        cells = (f"{row[key]:.1f}" for key in ("start_s", "memory_mib", "database_mib", "log_mib"))
        print(f"| {row['steps']:,} | {' | '.join(cells)} | {row['files']} |")
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
