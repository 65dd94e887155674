"""The job queue: Celery over Redis, JSON only. Both sides, who sends and who works, are configured here."""

from __future__ import annotations

from typing import Final

from celery import Celery

from tenora_platform.settings import Settings

QUEUE: Final = "tenora"
TASK_LIMIT_S: Final = 300  # a task that takes longer is killed; its row is found by the sweeper
VISIBILITY_S: Final = 3600  # Redis hands an unacknowledged message out again; far above the limit of a task


def make_queue(settings: Settings) -> Celery:
    """A Celery application. Nothing connects before the first job is sent or the worker starts."""
    app = Celery("tenora", broker=settings.redis_url or None, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        result_serializer="json",
        task_ignore_result=True,
        task_default_queue=QUEUE,
        task_acks_late=True,
        # A task that takes its process down (out of memory) is not handed out again at once: the sweeper does it,
        # and it counts.
        task_reject_on_worker_lost=False,
        task_time_limit=TASK_LIMIT_S,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_S,
            "socket_timeout": 5,
            "socket_connect_timeout": 2,
            "max_retries": 1,  # of a publish: a request must not wait for a queue that is away
        },
        timezone="UTC",
        enable_utc=True,
    )
    return app
