"""Asks over the queue whether a worker is at work."""

from __future__ import annotations

from celery import Celery
from kombu.exceptions import OperationalError


def worker_answers(redis_url: str, timeout_s: float = 0.5) -> bool:
    """Whether a worker answers a ping; no when Redis is away. The connection is new: Celery's pool keeps dead ones."""
    queue = Celery(broker=redis_url)
    with queue.connection_for_write() as connection:
        try:
            return bool(queue.control.ping(timeout=timeout_s, connection=connection))
        except (OperationalError, *connection.connection_errors):
            return False
