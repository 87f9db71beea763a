"""Parts of the server's parent process: tasks as the engine keeps them, and the end of old ones."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.job_def_manager import JobInfo, SimpleJobDefManager
from nvflare.apis.storage import StorageException

from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.retention import tidy


class BoundedJobStore(SimpleJobDefManager):  # type: ignore[misc]
    """The engine's own, except that a task which is removed while it is looked at does no harm.

    The engine's scheduler looks through all tasks every second, and an error there would end it: the server
    would go on to take tasks and never start one.
    """

    def _scan(self, job_filter: Any, fl_ctx: FLContext, skip_tag: str | None = None) -> None:
        store = self._get_job_store(fl_ctx)
        os.makedirs(self.uri_root, mode=0o700, exist_ok=True)
        for uri in store.list_objects(self.uri_root, without_tag=skip_tag):
            name = pathlib.PurePath(uri).name
            try:
                meta = store.get_meta(self.job_uri(name))
                if meta and not job_filter.filter_job(JobInfo(meta, name, self.job_uri(name))):
                    break
            except (StorageException, OSError):
                continue


class Tidying(FLComponent):  # type: ignore[misc]
    """Removes what old tasks left, whenever the server starts and whenever a task is over."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type not in (EventType.SYSTEM_START, EventType.JOB_COMPLETED):
            return
        kit = pathlib.Path(fl_ctx.get_engine().args.workspace)
        try:
            done = tidy(kit)
            if done.tasks:
                self.logger.info(f"removed what {done.tasks} old tasks left, {done.bytes} bytes")
        except (CnfgnnError, OSError) as problem:
            self.logger.error(f"what old tasks left cannot be removed: {problem}")
