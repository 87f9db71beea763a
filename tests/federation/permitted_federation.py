"""A federation in this process whose sites answer what their owners permit, and count it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from cnfgnn.federation.site.nodes import SiteNodes
from cnfgnn.federation.site.permissions import Permissions
from cnfgnn.federation.site.sent import Account
from cnfgnn.federation.site.task_verbs import verbs_allowed
from cnfgnn.federation.site_task import SiteTask
from cnfgnn.federation.task import Task
from cnfgnn.transports.remote.endpoint import Endpoint
from cnfgnn.transports.remote.messages import refused, unpack
from tests.federation.in_memory_federation import InMemoryFederation


class PermittedFederation(InMemoryFederation):
    """The sites do for every message what the process that answers for a site does.

    said  what the server says that the task is, if it lies
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.task = SiteTask("", "train")
        self.said: SiteTask | None = None
        self.tasks, self.now = 0, time.time()
        self.refused: dict[str, list[str]] = {name: [] for name in self.sites}
        self.permissions = {name: Permissions(self.kits[name]) for name in self.sites}
        self.accounts = {name: Account(self.kits[name], self.permissions[name].day) for name in self.sites}

    def run_task(self, task: Task) -> Mapping[str, Any]:
        self.tasks += 1
        method = str(task.settings.get("method", "")) or self.task.method
        self.task = self.said or SiteTask(f"task-{self.tasks}", task.do, task.run, method, 2)
        return super().run_task(task)

    def restart(self, name: str) -> None:
        nodes = SiteNodes(self.kits[name])
        allowed = verbs_allowed(self.task.do, self.task.method)
        self.ends[name] = Endpoint(nodes.join, nodes.describe, allowed=allowed)

    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        note, account, permissions = unpack(request), self.accounts[site], self.permissions[site]
        used, rounds = account.used(self.now), 0
        refusal = permissions.refusal(self.task, note, used, self.now)
        if refusal is None:
            end = self.ends[site]
            before = end.rounds_begun
            left, end.no_more_rounds = permissions.rounds_left(used)
            end.most_rounds = before + left
            answer = super().ask(site, request, timeout)
            rounds = end.rounds_begun - before
        else:
            answer = refused(note, *refusal)
            self.refused[site].append(refusal.reason)
        account.count(self.task, note, len(request), unpack(answer), len(answer), self.now, rounds)
        return answer

    def permit(self, name: str, rules: str) -> None:
        """Write rules to the settings of a site, in place of those before."""
        file = self.kits[name] / "local" / "site.toml"
        file.write_text(f"{file.read_text().partition('[permissions]')[0]}[permissions]\n{rules}\n")

    def close(self) -> None:
        for account in self.accounts.values():
            account.close()
