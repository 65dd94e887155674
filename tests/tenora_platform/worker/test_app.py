"""The worker's own rules; that a real one works is in `control/exports/test_exports.py`."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from celery.exceptions import Retry
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from tenora_platform.control.jobs import Job, Periodic
from tenora_platform.control.queue import TASK_LIMIT_S, VISIBILITY_S
from tenora_platform.control.resources import Resources
from tenora_platform.control.transaction import Transaction
from tenora_platform.db.models import AuditEntry
from tenora_platform.db.session import PLATFORM
from tenora_platform.settings import Settings
from tenora_platform.worker import app as worker


def note(work: Transaction, target: str) -> None:
    work.session.add(AuditEntry(actor=work.actor, tenant_id=None, action="test", target=target, detail={}))
    work.session.flush()


def targets(resources: Resources) -> list[str]:
    with resources.sessions(scope=PLATFORM) as session:
        return [entry.target for entry in session.scalars(select(AuditEntry))]


def test_no_pickle_and_no_message_lost(control_settings: Settings) -> None:
    """UPL-01, BILL-03: JSON alone; acknowledged when done; handed out again long after it would have been killed."""
    conf = worker.make_worker(control_settings).conf
    assert conf.accept_content == ["json"]
    assert conf.task_serializer == conf.result_serializer == "json"
    assert conf.task_acks_late
    assert conf.task_time_limit == TASK_LIMIT_S
    assert conf.broker_transport_options["visibility_timeout"] == VISIBILITY_S > 2 * TASK_LIMIT_S
    assert conf.result_backend is None


def test_every_periodic_job_is_on_the_schedule(control_settings: Settings) -> None:
    app = worker.make_worker(control_settings)
    names = {job.name for job in worker.PERIODIC}
    assert names == {entry["task"] for entry in app.conf.beat_schedule.values()}
    assert {"adapters.sweep", "exports.sweep"} <= names
    assert names | {job.name for job in worker.JOBS} <= set(app.tasks)


def test_a_job_is_one_transaction(
    resources: Resources, control_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(work: Transaction, target: uuid.UUID) -> None:
        note(work, str(target))
        if target.int == 0:
            raise ValueError("half way")

    def tick(work: Transaction) -> None:
        note(work, "tick")

    monkeypatch.setattr(worker, "JOBS", (Job("test.twice", twice),))
    monkeypatch.setattr(worker, "PERIODIC", (Periodic("test.tick", tick, every=timedelta(minutes=1)),))
    app = worker.make_worker(control_settings)
    with pytest.raises(ValueError, match="half way"):
        app.tasks["test.twice"](str(uuid.UUID(int=0)))
    assert targets(resources) == []
    app.tasks["test.twice"](str(uuid.UUID(int=1)))
    app.tasks["test.tick"]()
    assert targets(resources) == [str(uuid.UUID(int=1)), "tick"]


def test_a_database_that_is_away_for_a_moment(control_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_work: Transaction, _target: uuid.UUID) -> None:
        raise OperationalError("SELECT 1", {}, Exception("connection lost"))

    monkeypatch.setattr(worker, "JOBS", (Job("test.away", away),))
    task = worker.make_worker(control_settings).tasks["test.away"]
    task.push_request(called_directly=False, args=[str(uuid.UUID(int=1))], retries=0)
    with pytest.raises(Retry):
        task.run(str(uuid.UUID(int=1)))
