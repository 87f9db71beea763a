"""Write the tables of README.md and docs/ that are made from records.

    make tables                              # rewrites what stands between two marks, in all pages
    python studies/docs_tables.py --check    # changes nothing; exits with 1 if a page is not current

A mark names a table and what it shows:

    <!-- table: records headline+forecasting:gru-fedavg,at-fedavg rmse published bytes -->
    <!-- end of table -->

`records FOLDERS COLUMNS` has a line for each method and group of settings in experiments/records/FOLDER; put
the `record.json` of a run there, under any name. `FOLDER:METHOD,METHOD` takes these methods alone, in their
small size, and `@DATA` after the columns this data set alone. Columns are those of `COLUMNS` below. A table
shows masked or unmasked errors, never both, of records with the same treatment of missing readings. Without
records in the first folder there is no table.

`data-sets` shows experiments/data; `operations` recomputes the paper's. `attacks FOLDER` shows how near
attacks came: the record of a run with its blur and, as `attacks`, the lines of `cnfgnn attack --json`.
`intervals FOLDERS` shows how good the ranges of the records in some folders are, for each data set.
`kinds FOLDER` shows the default beside simple forecasts and trees on the synthetic kinds, from what
`studies/kinds.py --records` writes.
`paired FOLDER masked` (or `unmasked`) shows comparisons of two runs over all steps, by these errors, which
`studies/paired.py --record` writes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from cnfgnn.algorithm.methods import Like, method_of, preset
from cnfgnn.config.presets import LIKES
from cnfgnn.config.settings import SETTINGS
from cnfgnn.errors import ConfigError
from cnfgnn.studies.costs import operations_of_a_node
from cnfgnn.studies.published import COSTS, FRACTIONS, INDUCTIVE_RMSE, NETWORKS, TEST_RMSE
from cnfgnn.studies.tables import Column, Mean, Table

ROOT = Path(__file__).resolve().parents[1]
RECORDS, DATA = ROOT / "experiments" / "records", ROOT / "experiments" / "data"
MARKED = re.compile(r"(<!-- table: ([^>]+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)
COLUMNS = {
    "rmse": Column("rmse", "RMSE"),
    "mae": Column("mae", "MAE"),
    "masked_rmse": Column("masked_rmse", "masked RMSE"),
    "masked_mae": Column("masked_mae", "masked MAE"),
    "unseen_rmse": Column("unseen_rmse", "RMSE of unseen sensors"),
    "published": Column("published", "published"),
    "bytes": Column("bytes", "MB per node", 1),
    "gib": Column("gib", "GiB", 3),
    "published_gib": Column("published_gib", "published GiB", 3),
    "best": Column("best", "best rounds"),
}
ERRORS = [key for key in COLUMNS if key.endswith(("rmse", "mae", "published"))]
ATTACKS = {  # labels of `cnfgnn attack` and what a page calls them
    "guess: each sensor's mean": "guess: its mean",
    "whole series at once": "whole series",
    "series, smoother (colluding)": "smoother, colluding",
    "series, smoother (known blur)": "smoother, known blur",
    "series, smoother (network)": "smoother, network",
}
NONE_YET = "*No records yet.*"
SMALL, SEEN, PRECISION, FULL = "63k", "training.seen", "compute.precision", "fp32"
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """The records of a method with the same settings, by data set."""

    method: str
    settings: Mapping[str, str]
    of: dict[str, list[Record]] = field(default_factory=dict)

    def commits(self) -> list[str]:
        return list(dict.fromkeys(str(one["commit"]) for name in sorted(self.of) for one in self.of[name]))

    def seeds(self) -> str | None:
        found = [[one["seed"] for one in self.of[name]] for name in sorted(self.of)]
        listed = [", ".join(str(seed) for seed in sorted(seeds)) for seeds in found if None not in seeds]
        return "; ".join(dict.fromkeys(listed)) or None


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


def records(folders: str, *columns: str) -> Table | str:
    """Test errors of the records in some folders, mean and spread over seeds, with their commits."""
    of_data = [column[1:] for column in columns if column.startswith("@")]
    columns = tuple(column for column in columns if not column.startswith("@"))
    masked = _kind(columns)
    parts = [[one for one in _read(part) if _is_masked(one) == masked] for part in folders.split("+")]
    if of_data:
        parts = [[one for one in part if one["data"]["name"] in of_data] for part in parts]
    if not parts[0]:
        return NONE_YET
    found = [record for part in parts for record in part]
    _check_data(found)
    names = sorted({record["data"]["name"] for record in found})
    trained = [set(_settings(record).items()) for record in found if record["seed"] is not None]
    common = set.intersection(*trained) if trained else set()
    rows = [_row(line, common, columns) for line in _lines(found)]
    by_share = all(row[SEEN] is not None for row in rows)
    rows.sort(key=lambda row: _order(row, f"{names[0]} {columns[0]}", by_share))
    heads = [Column("method", "method"), Column(SEEN, "sensors seen", 0, share=True)]
    for name in names:
        ahead = f"{_title(name)}: " if len(names) > 1 else ""
        shown = (COLUMNS[key] for key in columns)
        heads += [replace(one, key=f"{name} {one.key}", label=ahead + one.label) for one in shown]
    heads += [Column(PRECISION, "precision"), Column("seeds", "seeds"), Column("commit", "commit")]
    heads = [head for head in heads if any(row.get(head.key) is not None for row in rows)]
    told = [("data.missing", "masked" if masked else "as-truth"), *sorted(common)]
    settings = ", ".join(f"{key} = {value}" for key, value in told)
    return Table("records", "Records", heads, rows, [f"Measured on {_machines(found)}; {settings}."])


def _machines(found: Sequence[Record]) -> str:
    return " and ".join(sorted({record["machine"] for record in found}))


def _kind(columns: Sequence[str]) -> bool:
    """Whether a table shows masked errors."""
    kinds = {column.startswith("masked") for column in columns if column in ERRORS}
    if len(kinds) != 1:
        raise SystemExit(f"masked and unmasked errors never share a table: {' '.join(columns)}")
    return kinds.pop()


def _read(part: str) -> list[Record]:
    """The records of FOLDER, or of FOLDER:METHOD,METHOD."""
    folder, _, methods = part.partition(":")
    found = [json.loads(path.read_text()) for path in sorted((RECORDS / folder).glob("*.json"))]
    wanted = methods.split(",")
    return [one for one in found if not methods or (one["method"] in wanted and _size(one) == SMALL)]


def _lines(found: Sequence[Record]) -> list[Line]:
    """A line for each method and group of settings; it names the commits of its records."""
    lines: dict[tuple[str, str], Line] = {}
    for record in found:
        method, settings, name = record["method"], _settings(record), record["data"]["name"]
        line = lines.setdefault((method, json.dumps(settings, sort_keys=True)), Line(method, settings))
        of_data = line.of.setdefault(name, [])
        if any(one["seed"] == record["seed"] for one in of_data):
            raise SystemExit(f"two records of {method} on {name} have seed {record['seed']}: keep the later")
        of_data.append(record)
    return list(lines.values())


def _row(line: Line, common: set[tuple[str, str]], columns: Sequence[str]) -> dict[str, Any]:
    own = {key: value for key, value in line.settings.items() if (key, value) not in common}
    seen, precision = own.pop(SEEN, None), own.pop(PRECISION, None)
    label = ", ".join([_label(line.method), *(f"{key} = {value}" for key, value in own.items())])
    row: dict[str, Any] = {"method": label, SEEN: float(seen) if seen else None, PRECISION: precision}
    for name, of_data in line.of.items():
        row |= {f"{name} {column}": _figure(of_data, column) for column in columns}
    return row | {"seeds": line.seeds(), "commit": ", ".join(line.commits())}


def _figure(of_data: Sequence[Record], column: str) -> Mean | float | str | None:
    """What a column shows of the records of one line and data set."""
    if column == "published":
        return _published(of_data[0])
    if column == "published_gib":
        return _published_gib(of_data[0])
    if column == "best":
        return ", ".join(str(one["rounds"]["best"]) for one in sorted(of_data, key=lambda one: one["seed"]))
    if column in ("bytes", "gib"):
        if not of_data[0]["bytes"] or not of_data[0]["bytes"]["per_node"]:
            return None  # nothing was sent
        sent = [(one["bytes"]["per_node"], one["data"]["sensors"]) for one in of_data]
        return Mean.of(all_nodes / (1e6 * nodes if column == "bytes" else 2**30) for all_nodes, nodes in sent)
    of, error = ("unseen", "rmse") if column == "unseen_rmse" else ("overall", column)
    return Mean.of(record["errors"][of][error] for record in of_data)


def _published(record: Record) -> float | None:
    """The paper's unmasked RMSE of a method, on the whole data set."""
    method, like = record["method"], _like(record["data"]["name"]) or ""
    seen = record.get("settings", {}).get(SEEN)
    if seen is None:
        return TEST_RMSE.get(like, {}).get((method, _size(record)))
    figures = INDUCTIVE_RMSE.get(like, {}).get(method)
    return figures[FRACTIONS.index(seen)] if figures and seen in FRACTIONS else None


def _published_gib(record: Record) -> float | None:
    """What the paper's training of a method with small models sent until its best round."""
    like, method = _like(record["data"]["name"]), record["method"]
    small = [
        cost for cost in COSTS if (cost.data, cost.method) == (like, method) and cost.parameters < 100_000
    ]
    return small[0].gib if small else None


def _order(row: Mapping[str, Any], error: str, by_share: bool) -> tuple[Any, ...]:
    """By method and share of sensors; or large errors first, and last what has none."""
    if by_share:
        return row["method"], row[SEEN]
    return row.get(error) is None, -_mean(row.get(error))


def _label(method: str) -> str:
    with suppress(ConfigError):  # not a method of ours
        if not method_of(method).federated:
            return f"{method}, pooled"
    return "at-fedavg (CNFGNN)" if method == "at-fedavg" else method


def _title(data: str) -> str:
    like = _like(data) or ""
    return like.upper() + data[len(like) :].replace("-", " ")


def _size(record: Record) -> str:
    return str(record.get("preset", {}).get("size", SMALL))


def _like(name: str) -> Like | None:
    """The data set of the paper that the data of this name are a part of, if any."""
    return next((like for like in LIKES if name.startswith(like)), None)


def _is_masked(record: Record) -> bool:
    """Whether missing readings were left out in training."""
    otherwise = "as-truth" if record.get("preset", {}).get("like") else "masked"
    return bool(record.get("settings", {}).get("data.missing", otherwise) == "masked")


def _mean(value: Any) -> float:
    return value.mean if isinstance(value, Mean) else 0.0


def _settings(record: Record) -> dict[str, str]:
    """Its precision, the run that it went on from, and what it was told beyond its method and the published
    settings of the data set, but for `data.missing`, which is the same in a table. One that was told nothing
    has the default settings."""
    method, size, like = record["method"], _size(record), _like(record["data"]["name"])
    near = record.get("preset", {}).get("like", like) or None
    told: dict[str, Any] = dict(record.get("settings", {})) | {k: record[k] for k in ("from",) if k in record}
    if near is None and size == SMALL and told.keys() <= {PRECISION}:
        return told if record["seed"] is None else {PRECISION: FULL} | told
    try:
        published, nearest = preset(method, size, like, inductive=SEEN in told), preset(method, size, near)
        told = {key: nearest.setting(key) for key in SETTINGS} | told
        same = {key for key in SETTINGS if key != PRECISION and told[key] == published.setting(key)}
        told = {key: value for key, value in told.items() if key not in same}
    except ConfigError:  # not a method of ours, or without such a preset
        told |= {"like": near or "none"} if near != like else {}
        if told.get("training.loss") == "square":  # as in every preset
            del told["training.loss"]
    told |= {"size": size} if size != SMALL else {}
    return {key: str(value) for key, value in told.items() if key != "data.missing"}


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
        of_splits = (facts[f"{split}_windows"] for split in ("train", "validation", "test"))
        rows.append(
            {
                "name": facts["name"],
                "sensors": facts["sensors"],
                "edges": facts["edges_between_sensors"],
                "windows": " / ".join(f"{count:,}" for count in of_splits),
                "span": f"{facts['from'][:10]} to {facts['to'][:10]}",
                "missing": facts["missing"],
                "checksum": f"`{facts['checksum'][:12]}`",
            }
        )
    columns = [Column("name", "data"), Column("sensors", "sensors"), Column("edges", "directed edges")]
    columns += [Column("windows", "train / validation / test windows"), Column("span", "span")]
    columns += [Column("missing", "missing", 1, share=True), Column("checksum", "checksum")]
    return Table("data-sets", "Data sets", columns, sorted(rows, key=lambda row: str(row["name"])))


def attacks(folder: str) -> Table | str:
    """How near each attack came to the readings of the test split, for each blur of each data set."""
    found = _read(folder)
    if not found:
        return NONE_YET
    rows = []
    for record in sorted(found, key=lambda one: (one["data"]["name"], one["blur"])):
        lines = {line["label"]: line["all"]["rmse"] for line in record["attacks"] if line["split"] == "test"}
        row = {"data": _title(record["data"]["name"]), "blur": f"{record['blur']:g}"}
        row |= {"rmse": record["errors"]["overall"]["rmse"], "commit": record["commit"], **lines}
        rows.append(row | {"copy": min((lines[label] for label in lines if "copy" in label), default=None)})
    columns = [Column("data", "data"), Column("blur", "blur"), Column("rmse", "forecasts")]
    columns += [Column(label, shown, 2) for label, shown in ATTACKS.items()]
    columns += [Column("copy", "nearest, given the copy", 2), Column("commit", "commit")]
    return Table(folder, folder, columns, rows, [f"Measured on {_machines(found)}."])


def intervals(folders: str) -> Table | str:
    """Coverage and mean width of ranges of 80 and 95 %, for each method and data set."""
    found = [one for part in folders.split("+") for one in _read(part) if one["errors"].get("intervals")]
    if not found:
        return NONE_YET
    rows = []
    for line in _lines(found):
        for name, of_data in line.of.items():
            row: dict[str, Any] = {"data": _title(name), "method": _label(line.method)}
            for level in ("80", "95"):
                ranges = [one["errors"]["intervals"][level] for one in of_data]
                row |= {
                    f"{level} {key}": Mean.of(one[key] for one in ranges) for key in ("coverage", "width")
                }
            of_this = Line(line.method, line.settings, {name: of_data})
            rows.append(row | {"seeds": of_this.seeds(), "commit": ", ".join(of_this.commits())})
    columns = [Column("data", "data"), Column("method", "method")]
    for level in ("80", "95"):
        columns += [
            Column(f"{level} coverage", f"coverage of {level} %", 1, share=True, spread=False),
            Column(f"{level} width", f"width of {level} %", 2),
        ]
    columns += [Column("seeds", "seeds"), Column("commit", "commit")]
    return Table("intervals", "Intervals", columns, rows, [f"Measured on {_machines(found)}."])


def paired(folder: str, errors: str) -> Table | str:
    """Masked or unmasked errors of two runs over all steps, with the interval of their difference and what it
    says."""
    rows = []
    for record in _read(folder):
        if record["error"].startswith("masked") != (errors == "masked"):
            continue
        over_all, names = record["steps"]["all"], {"a is better": record["a"], "b is better": record["b"]}
        interval = f"{over_all['low']:+.3f} to {over_all['high']:+.3f}"
        rows.append(
            {
                "data": _title(record["data"]),
                "error": COLUMNS[record["error"]].label,
                "a": f"{record['a']}: {over_all['a']:.3f}",
                "b": f"{record['b']}: {over_all['b']:.3f}",
                "apart": f"{over_all['a'] - over_all['b']:+.3f} ({interval})",
                "days": over_all["days"],
                "better": names.get(over_all["verdict"], "not shown"),
                "commit": record["commit"],
            }
        )
    if not rows:
        return NONE_YET
    columns = [Column("data", "data"), Column("error", "error"), Column("a", "a"), Column("b", "b")]
    columns += [Column("apart", "a - b"), Column("days", "days"), Column("better", "better")]
    return Table(folder, folder, [*columns, Column("commit", "compared at")], rows)


def kinds(folder: str) -> Table | str:
    """The error of the default on each kind of data, and of its linear part alone, as a ratio to that of the
    best simple forecast, and to that of LightGBM; largest ratios first."""
    found = _read(folder)
    if not found:
        return NONE_YET
    if not all(record["test"] for record in found):
        raise SystemExit(
            f"{folder}: errors before the test split are no results (kinds.py --spend-test-split)"
        )
    rows = []
    for record in sorted(found, key=lambda one: -one["ratio"]):
        simple = {name: error for name, error in record["simple"].items() if name != "LightGBM"}
        row = {key: record[key] for key in ("kind", "sensors", "windows", "ratio", "commit")}
        row["best"] = min(simple, key=lambda name: simple[name])
        row["linear"] = record["linear"] / simple[row["best"]]
        row["trees"] = record["error"] / record["simple"]["LightGBM"]
        rows.append(row)
    means = {key: geometric_mean([row[key] for row in rows]) for key in ("ratio", "linear", "trees")}
    rows.append({"kind": "geometric mean", **means})
    seeds = ", ".join(sorted({str(record["settings"]["seed"]) for record in found}))
    columns = [Column("kind", "data"), Column("sensors", "sensors"), Column("windows", "windows")]
    columns += [Column("best", "best simple forecast"), Column("ratio", "default / best simple")]
    columns += [Column("linear", "linear part / best simple"), Column("trees", "default / LightGBM")]
    columns += [Column("commit", "commit")]
    notes = [f"Measured on {_machines(found)}; seed {seeds}."]
    return Table(folder, folder, columns, rows, notes)


TABLES: Mapping[str, Callable[..., Table | str]] = {
    "records": records,
    "attacks": attacks,
    "intervals": intervals,
    "kinds": kinds,
    "paired": paired,
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
