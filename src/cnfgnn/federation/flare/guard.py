"""Part of the server's parent process, through which every message between parties passes."""

from __future__ import annotations

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext

from cnfgnn.federation.flare.cell import guard_notes


class NotesGuard(FLComponent):  # type: ignore[misc]
    """Keeps sites from writing notes in the server's name, or to each other."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            guard_notes(fl_ctx.get_engine().server.cell.core_cell)
