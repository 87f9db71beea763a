"""A data set split between sites, as a project to make kits from: for the demonstration and for tests."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from cnfgnn.config.toml import dump_table
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.export import write_folder, write_network
from cnfgnn.files import make_folder, write_whole


def write_example(
    folder: Path, data: Dataset, sites: Mapping[str, Sequence[int]], min_sites: int = 1, blur: float = 0.0
) -> Path:
    """Write a project file for this machine and every site's readings in a folder of its own.

    `sites` lists each site's sensors by their position in the data, and `blur` is the least blur of each
    site. Returns the path of the project file.
    """
    make_folder(folder)
    owners: dict[str, dict[str, object]] = {}
    for name, rows in sites.items():
        sensors, place = [data.readings.ids[row] for row in rows], make_folder(folder / "data" / name)
        write_folder(data.select(sensors), place)
        owners[name] = {"sensors": sensors, "readings": str(place.absolute())}
    write_network(data, folder)
    port, admin_port = free_ports(2)
    content = {
        "name": folder.name,
        "min_sites": min_sites,
        "blur": blur,
        "server": {"host": "localhost", "port": port, "admin_port": admin_port},
        "graph": {"sensors": "sensors.csv", "edges": "edges.csv"},
        "sites": owners,
    }
    write_whole(folder / "project.toml", dump_table(content).encode())
    return folder / "project.toml"


def free_ports(count: int) -> list[int]:
    """Ports of this machine that are free now."""
    with ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(bound.getsockname()[1]) for bound in found]
