"""The question whether a worker is there is answered, whatever became of Redis: the supervisor must not end with it."""

from __future__ import annotations

import redis

from tenora_platform.stack.ports import free_port
from tenora_platform.stack.worker_probe import worker_answers


def test_without_redis_no_worker_answers() -> None:
    assert not worker_answers(f"redis://127.0.0.1:{free_port()}/0")


def test_connections_that_redis_closed_between_two_questions_do_no_harm(redis_url: str) -> None:
    """What a restart of Redis does to every connection that was open."""
    assert not worker_answers(redis_url, timeout_s=0.1)
    with redis.Redis.from_url(redis_url) as client:
        client.client_kill_filter(_type="normal", skipme=True)
        client.client_kill_filter(_type="pubsub", skipme=True)
    assert not worker_answers(redis_url, timeout_s=0.1)
