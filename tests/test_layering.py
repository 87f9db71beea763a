"""Imports point one way, and functions stay short enough to read."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "cnfgnn"
FILES = sorted(PACKAGE.rglob("*.py"))

# Each layer may import itself and what stands before it.
ORDER = [
    "version",
    "exit_codes",
    "errors",
    "process_setup",
    "repeated_lines",
    "files",
    "config",
    "forecasters",
    "data",
    "privacy",
    "models",
    "algorithm",
    "transports",
    "runs",
    "attack",
    "report",
    "live",
    "studies",
    "federation",
    "testing",
    "api",
    "",  # the package itself: offers the Python API
    "cli",
    "__main__",
]
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "core", "misc"}
FORBIDDEN_IN_ALGORITHM = {
    "nvflare",
    "h5py",
    "pandas",
    "pyarrow",
    "safetensors",
    "socket",
    "typer",
    "rich",
    "json",
}
LATE_ONLY = {
    "nvflare",
    "plotly",
    "pydantic",
    "tables",
}  # never needed on the way from readings to a trained run
ENGINE_FOLDER = "federation/engine"  # the only place where the federated engine may be imported


def layer_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "" if parts[0] == "__init__" else parts[0]


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> list[str]:
    found: list[str] = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: imports are absolute"
            found.append(node.module or "")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    layer = layer_of(path)
    assert layer in ORDER, f"{layer} has no place in the order"
    for name in imports(path):
        if name == "cnfgnn" or name.startswith("cnfgnn."):
            other = name.split(".")[1] if "." in name else ""
            assert ORDER.index(other) <= ORDER.index(layer), f"{path.name} imports {name}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "algorithm").rglob("*.py")), ids=lambda p: p.name)
def test_the_algorithm_knows_no_engine_no_file_format_and_no_network(path: Path) -> None:
    assert not FORBIDDEN_IN_ALGORITHM & {name.split(".")[0] for name in imports(path)}


def test_names_say_what_a_file_is_about() -> None:
    assert not FORBIDDEN_NAMES & {path.stem for path in FILES}


def test_functions_are_short() -> None:
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 60, f"{path.name}: {node.name}"


def test_every_module_says_what_it_is() -> None:
    for path in FILES:
        if path.name != "__init__.py" or path.parent == PACKAGE:
            assert ast.get_docstring(parsed(path)), path


def top_level_imports(path: Path) -> set[str]:
    found = [n for n in parsed(path).body if isinstance(n, ast.Import | ast.ImportFrom)]
    names = {a.name for n in found if isinstance(n, ast.Import) for a in n.names}
    return names | {n.module or "" for n in found if isinstance(n, ast.ImportFrom)}


def test_the_way_to_a_trained_run_needs_no_late_package() -> None:
    for path in FILES:
        late = LATE_ONLY - ({"nvflare"} if is_engine(path) else set())
        assert not late & {name.split(".")[0] for name in top_level_imports(path)}, path


def is_engine(path: Path) -> bool:
    return path.is_relative_to(PACKAGE / ENGINE_FOLDER)


def test_only_one_folder_imports_the_engine() -> None:
    for path in FILES:
        if not is_engine(path):
            assert not any(name.split(".")[0] == "nvflare" for name in imports(path)), path


def test_what_needs_the_engine_is_imported_late() -> None:
    for path in FILES:
        if not path.is_relative_to(PACKAGE / "federation"):
            assert not any(name.startswith("cnfgnn.federation") for name in top_level_imports(path)), path


# The rooms of a federation, from the lowest; what is in none of them stands below all, and the demo above.
ROOMS = ["kits", "site", "server", "engine", "operator"]
APART = {("engine", "site")}  # bytes pass between them, and nothing else


def room_of(module: str) -> int:
    """The number of the room that a module of a federation is in; -1 if it stands below all."""
    name = module.split(".")[2]
    return len(ROOMS) if name == "demo" else ROOMS.index(name) if name in ROOMS else -1


def test_rooms_of_a_federation_import_those_below_them() -> None:
    for path in (PACKAGE / "federation").rglob("*.py"):
        own = module_name(path)
        if path.name == "__init__.py":
            continue
        for name in imported_modules(path):
            if name.startswith("cnfgnn.federation.") and room_of(name) >= 0:
                assert room_of(name) <= room_of(own), f"{own} imports {name}"
                assert (own.split(".")[2], name.split(".")[2]) not in APART, f"{own} imports {name}"


# The rooms of two packages, from the lowest; "" are the modules outside of any.
FLOORS = {"algorithm": ("messages", "compute", ""), "data": ("", "synthetic", "files")}
ABOVE_ALL = {"cnfgnn.data.source"}  # opens either the synthetic city or files


@pytest.mark.parametrize("package", FLOORS)
def test_rooms_import_those_below_them(package: str) -> None:
    def floor(module: str) -> int:
        room = module.split(".")[2]
        return FLOORS[package].index(room if room in FLOORS[package] else "")

    for path in (PACKAGE / package).rglob("*.py"):
        own = module_name(path)
        for name in top_level_imports(path):
            if name.startswith(f"cnfgnn.{package}.") and own not in ABOVE_ALL:
                assert floor(name) <= floor(own), f"{own} imports {name}"


# The rooms of the live service, from the lowest; its options stand below all, and what starts it above.
LIVE_ROOMS = ["options", "intake", "forecasting", "learning", "web", "start", "demo"]


def test_rooms_of_the_live_service_import_those_below_them() -> None:
    for path in (PACKAGE / "live").rglob("*.py"):
        own = module_name(path)
        for name in imported_modules(path):
            if name.startswith("cnfgnn.live."):
                lower, upper = (LIVE_ROOMS.index(module.split(".")[2]) for module in (name, own))
                assert lower <= upper, f"{own} imports {name}"


def test_the_engine_and_the_supervisor_of_a_site_load_neither_pytorch_nor_each_other() -> None:
    """Neither directly nor through another module; the engine's jobs do without NumPy, too."""
    relay = reachable_modules("cnfgnn.federation.engine.carry.executor")
    supervisor = reachable_at_once("cnfgnn.federation.site.supervisor")
    assert not any(name.startswith(("cnfgnn.federation.site", "cnfgnn.data")) for name in relay)
    assert not any("torch" in imports_at_once(name) for name in relay | supervisor)
    assert not any("numpy" in imports_at_once(name) for name in relay)
    assert not any(name.startswith("cnfgnn.federation.engine") for name in supervisor)


def imports_at_once(name: str) -> set[str]:
    file = module_file(name)
    return {other.split(".")[0] for other in top_level_imports(file)} if file is not None else set()


def reachable_at_once(first: str) -> set[str]:
    """A module and every module that is loaded with it."""
    found, waiting = {first}, [first]
    while waiting:
        file = module_file(waiting.pop())
        new = set() if file is None else {n for n in top_level_imports(file) if module_file(n)} - found
        found |= new
        waiting += new
    return found


LIVE_PACKAGES = {"starlette", "uvicorn", "paho", "prometheus_client"}  # the extra `live`


# Modules of a federation that are imported only when it is live.
LIVE_MODULES = {
    "site.live": ("predictor", "model", "nodes"),
    "operator.live": ("metrics", "page"),
}
LIVE_FEDERATION = {
    f"cnfgnn.federation.{room}.{name}" for room, names in LIVE_MODULES.items() for name in names
}


def test_only_the_live_service_needs_its_packages() -> None:
    seen: set[str] = set()
    for path in FILES:
        is_live = path.is_relative_to(PACKAGE / "live")
        if not is_live and module_name(path) not in LIVE_FEDERATION:
            assert not LIVE_PACKAGES & {name.split(".")[0] for name in imports(path)}, path
            found = top_level_imports(path)
            live = [name for name in found if name.startswith("cnfgnn.live")]
            assert not any(needs_live_packages(name, seen) for name in live), path
            assert not LIVE_FEDERATION & set(found), path


def module_name(path: Path) -> str:
    return ".".join(["cnfgnn", *path.relative_to(PACKAGE).with_suffix("").parts])


def needs_live_packages(name: str, seen: set[str]) -> bool:
    """Whether importing a module imports a package of the extra `live`; those that were `seen` do not."""
    if name.split(".")[0] in LIVE_PACKAGES:
        return True
    file = module_file(name)
    if file is None or name in seen:
        return False
    seen.add(name)
    return any(needs_live_packages(other, seen) for other in top_level_imports(file))


def test_what_needs_packages_of_the_live_service_is_recognised() -> None:
    assert needs_live_packages("cnfgnn.live.start", set())
    assert not needs_live_packages("cnfgnn.live.learning.retrain", set())


# ---- whatever answers a verb has no way to the true readings --------------------------------------------

OWNER = "cnfgnn.algorithm.owner"
# In the algorithm, only these know owners: what hands calls to nodes and owner, what sets both up, and
# centralised training, where nobody keeps anything to himself.
MAY_IMPORT_THE_OWNER = {"dispatch.py", "experiment.py", "pooled.py"}


@functools.cache
def module_file(name: str) -> Path | None:
    """The file of a module of this package; None for a name that is none, or that is of another package."""
    if name.split(".")[0] != "cnfgnn":
        return None
    path = PACKAGE.joinpath(*name.split(".")[1:])
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


@functools.cache
def imported_names(path: Path) -> set[str]:
    """Every module that a file imports, and every name that it imports from one."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def imported_modules(path: Path) -> set[str]:
    """Every module of this package that a file imports, also as `from package import module`."""
    return {name for name in imported_names(path) if module_file(name) is not None}


def reachable_modules(first: str) -> set[str]:
    """A module and every module of this package that it imports, directly or through others."""
    found, waiting = {first}, [first]
    while waiting:
        file = module_file(waiting.pop())
        assert file is not None
        new = imported_modules(file) - found
        found |= new
        waiting += new
    return found


@pytest.mark.parametrize("module", ["clients", "messages.verbs", "forecaster", "messages.nodes", "server"])
def test_what_answers_a_verb_or_asks_for_it_does_not_know_owners(module: str) -> None:
    assert OWNER not in reachable_modules(f"cnfgnn.algorithm.{module}")


def test_reachable_modules_are_found() -> None:
    """A test of the test: what may know owners does."""
    assert OWNER in reachable_modules("cnfgnn.algorithm.dispatch")
    assert {"cnfgnn.algorithm.clients", "cnfgnn.data.series"} <= reachable_modules(OWNER)


def test_in_the_algorithm_only_few_know_owners() -> None:
    importing = {
        path.name for path in (PACKAGE / "algorithm").glob("*.py") if OWNER in imported_modules(path)
    }
    assert importing == MAY_IMPORT_THE_OWNER


@pytest.mark.parametrize("module", ["clients", "messages.verbs", "forecaster"])
def test_what_answers_a_verb_does_not_know_how_copies_are_made(module: str) -> None:
    assert not any(
        name.startswith("cnfgnn.privacy") for name in reachable_modules(f"cnfgnn.algorithm.{module}")
    )
