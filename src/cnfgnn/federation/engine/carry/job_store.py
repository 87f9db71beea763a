"""Parts of the server's parent process: the stored tasks, and the removal of old ones."""

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
from cnfgnn.federation.kits.kit import read_server
from cnfgnn.federation.kits.retention import remove_old_tasks


class BoundedJobStore(SimpleJobDefManager):  # type: ignore[misc]
    """The engine's job store, except that a task may be removed while the store is scanned.

    The engine's scheduler scans all tasks every second. An error there would end the scheduler: the server
    would still accept tasks and never start one.
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


class JobRetention(FLComponent):  # type: ignore[misc]
    """Removes the files of old tasks whenever the server starts and whenever a task has finished."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type not in (EventType.SYSTEM_START, EventType.JOB_COMPLETED):
            return
        kit = pathlib.Path(fl_ctx.get_engine().args.workspace)
        try:
            removed = remove_old_tasks(kit, read_server(kit).keep_tasks)
            if removed.tasks:
                self.logger.info(f"removed the files of {removed.tasks} old tasks, {removed.bytes} bytes")
        except (CnfgnnError, OSError) as error:
            self.logger.error(f"the files of old tasks could not be removed: {error}")
