"""The worker: `celery -A tenora_platform.worker.app worker --beat`.

A job is one transaction, committed when its function returns. Failures of the database or the blob store are tried
again; a job that is lost all the same leaves a row behind that the periodic sweepers find.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import cache
from typing import Final

from celery import Celery
from sqlalchemy.exc import OperationalError

from tenora_adapters.blobs import BlobUnavailable
from tenora_platform.control.adapters import tasks as adapters
from tenora_platform.control.exports import tasks as exports
from tenora_platform.control.jobs import Job, Periodic
from tenora_platform.control.queue import make_queue
from tenora_platform.control.resources import Resources, open_resources
from tenora_platform.control.transaction import transaction
from tenora_platform.control.uploads import tasks as uploads
from tenora_platform.db.session import PLATFORM
from tenora_platform.settings import Settings, settings

JOBS: Final = (*adapters.JOBS, *exports.JOBS)
PERIODIC: Final = (*adapters.PERIODIC, *exports.PERIODIC, *uploads.PERIODIC)
_ACTOR: Final = "system"


def make_worker(configuration: Settings) -> Celery:
    app = make_queue(configuration)
    again = {"autoretry_for": (OperationalError, BlobUnavailable), "retry_backoff": 1, "max_retries": 5}

    # Opened by the first job, and so in the process that works: connections do not survive a fork.
    @cache
    def resources() -> Resources:
        return open_resources(configuration)

    for job in JOBS:
        app.task(name=job.name, shared=False, **again)(_job_body(job, resources))
    for periodic in PERIODIC:
        app.task(name=periodic.name, shared=False)(_periodic_body(periodic, resources))
    app.conf.beat_schedule = {
        periodic.name: {
            "task": periodic.name,
            "schedule": periodic.every,
            "options": {"expires": periodic.every.total_seconds()},  # a queue that was away is not flooded
        }
        for periodic in PERIODIC
    }
    return app


def _job_body(job: Job, resources: Callable[[], Resources]) -> Callable[[str], None]:
    def body(target: str) -> None:
        with transaction(resources(), PLATFORM, _ACTOR) as work:
            job.run(work, uuid.UUID(target))

    return body


def _periodic_body(periodic: Periodic, resources: Callable[[], Resources]) -> Callable[[], None]:
    def body() -> None:
        with transaction(resources(), PLATFORM, _ACTOR) as work:
            periodic.run(work)

    return body


celery_app = make_worker(settings())
