"""Part of the server's processes: guards what other parties send them, and what passes through them."""

from __future__ import annotations

from nvflare.apis.fl_component import FLComponent

from cnfgnn.federation.engine.guard import message_checks, site_reports


class MessageGuard(FLComponent):  # type: ignore[misc]
    """Keeps sites from reaching each other, and of the server what no task needs."""

    def __init__(self) -> None:
        super().__init__()
        message_checks.install()
        site_reports.install()
