"""Write the tables of README.md and docs/ that are made from records.

    make tables                              # rewrites what stands between two marks, in all pages
    python studies/docs_tables.py --check    # changes nothing; exits with 1 if a page is not current

A mark names a table and what it shows:

    <!-- table: records auckland masked_rmse masked_mae -->
    <!-- end of table -->

`records FOLDER ERROR...` has a line for each method, group of settings and commit in
experiments/records/FOLDER; put the `record.json` of a run there, under any name. The error `published` is the
paper's. `data-sets` shows experiments/data; `operations` recomputes the paper's.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cnfgnn.studies.costs import operations_of_a_node
from cnfgnn.studies.published import NETWORKS, TEST_RMSE
from cnfgnn.studies.tables import Column, Mean, Table

ROOT = Path(__file__).resolve().parents[1]
RECORDS, DATA = ROOT / "experiments" / "records", ROOT / "experiments" / "data"
MARKED = re.compile(r"(<!-- table: ([^>]+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)
LABELS = {"rmse": "RMSE", "mae": "MAE", "masked_rmse": "masked RMSE", "masked_mae": "masked MAE"}
LABELS["published"] = "published"
Record = Mapping[str, Any]


def pages() -> Iterator[tuple[Path, str, str]]:
    """The pages with marks: path, text as it is, text as it should be."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        if MARKED.search(text):
            yield path, text, MARKED.sub(lambda mark: f"{mark[1]}{_made(mark[2])}{mark[3]}", text)


def _made(mark: str) -> str:
    name, *arguments = mark.split()
    made = TABLES[name](*arguments)
    # Pages have their own titles.
    text = made if isinstance(made, str) else made.markdown().partition("\n\n")[2]
    return text.strip() + "\n"


def records(folder: str, *errors: str) -> Table | str:
    """Test errors of the records in a folder, mean and spread over seeds, with MB per node and commit."""
    found = [json.loads(path.read_text()) for path in sorted((RECORDS / folder).glob("*.json"))]
    if not found:
        return "*No records yet.*"
    _check_data(found)
    names = list(dict.fromkeys(record["data"]["name"] for record in found))
    trained = [set(_settings(record)) for record in found if record["seed"] is not None]
    common = set.intersection(*trained) if trained else set()
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for record in found:
        own = [f"{key} = {value}" for key, value in _settings(record) if (key, value) not in common]
        label = ", ".join([record["method"], *own])
        line = lines.setdefault((label, str(record["commit"])), {"method": label, "of": {}})
        line["of"].setdefault(record["data"]["name"], []).append(record)
    rows = [_row(line, commit, errors) for (_, commit), line in lines.items()]
    rows.sort(key=lambda row: -_mean(row.get(f"{names[0]} {errors[0]}")))
    columns = [Column("method", "method")]
    for name in names:
        ahead = f"{name}: " if len(names) > 1 else ""
        columns += [Column(f"{name} {error}", ahead + LABELS[error]) for error in errors]
        columns.append(Column(f"{name} bytes", f"{ahead}MB per node", 1))
    columns += [Column("seeds", "seeds"), Column("commit", "commit")]
    settings = ", ".join(f"{key} = {value}" for key, value in sorted(common))
    machines = " and ".join(sorted({record["machine"] for record in found}))
    notes = [f"Measured on {machines}{f'; {settings}' if settings else ''}."]
    return Table(folder, folder, columns, rows, notes)


def _row(line: Mapping[str, Any], commit: str, errors: Sequence[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"method": line["method"], "commit": commit}
    seeds: set[int] = set()
    for name, of_data in line["of"].items():
        for error in errors:
            row[f"{name} {error}"] = (
                _published(of_data[0]) if error == "published" else _over_seeds(of_data, error)
            )
        if of_data[0]["bytes"] is not None:
            megabytes = [record["bytes"]["per_node"] / record["data"]["sensors"] / 1e6 for record in of_data]
            row[f"{name} bytes"] = Mean.of(megabytes)
        seeds |= {record["seed"] for record in of_data if record["seed"] is not None}
    return row | {"seeds": ", ".join(map(str, sorted(seeds))) or None}


def _over_seeds(of_data: Sequence[Record], error: str) -> Mean:
    return Mean.of(record["errors"]["overall"][error] for record in of_data)


def _published(record: Record) -> float | None:
    """The paper's unmasked RMSE of a method, on the whole data set."""
    size = record.get("preset", {}).get("size", "")
    return TEST_RMSE.get(_like(record), {}).get((record["method"], size))


def _like(record: Record) -> str:
    """The data set of the paper that the data are a part of, if any."""
    return next((like for like in NETWORKS if record["data"]["name"].startswith(like)), "")


def _mean(value: Any) -> float:
    return value.mean if isinstance(value, Mean) else float("inf")


def _settings(record: Record) -> list[tuple[str, str]]:
    """What a run was told beyond its method and the data set's published settings, as pairs of text."""
    preset, pairs = record.get("preset", {}), []
    if preset.get("size", "63k") != "63k":
        pairs.append(("size", preset["size"]))
    if preset and preset["like"] != _like(record):
        pairs.append(("like", preset["like"] or "none"))
    return [*pairs, *((key, str(value)) for key, value in record.get("settings", {}).items())]


def _check_data(found: Sequence[Record]) -> None:
    sums: dict[str, str] = {}
    for record in found:
        data = record["data"]
        if sums.setdefault(data["name"], data["checksum"]) != data["checksum"]:
            raise SystemExit(f"the records of {data['name']} are of different readings: see their checksums")


def data_sets() -> Table:
    """Our data sets, and those of the paper (its Table 1)."""
    rows = []
    for name, network in NETWORKS.items():
        windows = (network.train, network.validation, network.test)
        rows.append({"name": f"{name}, published", "sensors": network.nodes, "edges": network.edges})
        rows[-1]["windows"] = " / ".join(f"{count:,}" for count in windows)
    for path in sorted(DATA.glob("*.json")):
        facts = json.loads(path.read_text())
        windows = (facts[f"{split}_windows"] for split in ("train", "validation", "test"))
        rows.append(
            {
                "name": facts["name"],
                "sensors": facts["sensors"],
                "edges": facts["edges_between_sensors"],
                "windows": " / ".join(f"{count:,}" for count in windows),
                "span": f"{facts['from'][:10]} to {facts['to'][:10]}",
                "missing": facts["missing"],
                "checksum": f"`{facts['checksum'][:12]}`",
            }
        )
    columns = [Column("name", "data"), Column("sensors", "sensors"), Column("edges", "directed edges")]
    columns += [Column("windows", "train / validation / test windows"), Column("span", "span")]
    columns += [Column("missing", "missing", 1, share=True), Column("checksum", "checksum")]
    return Table("data-sets", "Data sets", columns, sorted(rows, key=lambda row: str(row["name"])))


TABLES: Mapping[str, Callable[..., Table | str]] = {
    "records": records,
    "data-sets": data_sets,
    "operations": operations_of_a_node,
}


def main() -> None:
    check = "--check" in sys.argv[1:]
    stale = [(path, wanted) for path, text, wanted in pages() if text != wanted]
    for path, wanted in stale:
        print(f"{path.relative_to(ROOT)}: {'not current: run make tables' if check else 'written'}")
        if not check:
            path.write_text(wanted, encoding="utf-8")
    sys.exit(check and bool(stale))


if __name__ == "__main__":
    main()
