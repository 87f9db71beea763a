"""A data set dealt out to sites, as a project that can be made into kits: for demonstrations and tests."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.export import write_folder, write_network
from cnfgnn.files import make_folder, write_whole


def write_example(
    folder: Path, data: Dataset, sites: Mapping[str, Sequence[int]], min_sites: int = 1
) -> Path:
    """PROJECT.toml for this machine, with every site's readings in a folder of its own; the project's path.

    `sites` says which sensors each one owns, by their place in the data.
    """
    make_folder(folder)
    for name, rows in sites.items():
        own = data.select([data.readings.ids[row] for row in rows])
        write_folder(own, make_folder(folder / "data" / name))
    write_network(data, folder)
    port, admin_port = free_ports(2)
    lines = [
        f'name = "{folder.name}"',
        f"min_sites = {min_sites}",
        "[server]",
        'host = "localhost"',
        f"port = {port}",
        f"admin_port = {admin_port}",
        "[graph]",
        'sensors = "sensors.csv"',
        'edges = "edges.csv"',
    ]
    for name, rows in sites.items():
        owned = json.dumps([data.readings.ids[row] for row in rows])
        readings = json.dumps(str((folder / "data" / name).absolute()))
        lines += [f"[sites.{name}]", f"sensors = {owned}", f"readings = {readings}"]
    write_whole(folder / "project.toml", "\n".join([*lines, ""]).encode())
    return folder / "project.toml"


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on now."""
    with closing(socket.socket()) as first, closing(socket.socket()) as second:
        taken = [first, second][:count]
        for one in taken:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in taken]
