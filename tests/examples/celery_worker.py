"""The Celery example with a file system broker, which needs no server."""

from __future__ import annotations

import os
from pathlib import Path

from examples import celery_app

folder = Path(os.environ["CELERY_FOLDER"])
app = celery_app.app
app.conf.update(
    broker_url="filesystem://",
    broker_transport_options={
        "data_folder_in": str(folder), "data_folder_out": str(folder),
        "control_folder": str(folder / "control"),
    },
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)  # fmt: skip
