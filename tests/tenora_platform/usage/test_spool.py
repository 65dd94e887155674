"""The usage journal: what is on disk when, and what the next process finds."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import msgspec
import pytest

from tenora_platform.usage import spool as spool_module
from tenora_platform.usage.event import Outcome, UsageEvent
from tenora_platform.usage.spool import Spool, SpoolError
from tenora_platform.usage.spool_file import Progress, SpoolFile, open_spool

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def intent(event_id: UUID | None = None) -> UsageEvent:
    event_id = event_id or uuid4()
    return UsageEvent(
        event_id=event_id,
        request_id=f"cmpl-{event_id.hex}",
        tenant_id=uuid4(),
        key_id=uuid4(),
        base_model="toy",
        adapter=None,
        version_digest=None,
        endpoint="completions",
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        outcome=Outcome.RECOVERED,
        started_at=START,
        finished_at=START,
    )


def settled(event: UsageEvent, completion: int = 7) -> UsageEvent:
    return msgspec.structs.replace(
        event, prompt_tokens=5, completion_tokens=completion, outcome=Outcome.COMPLETED, finished_at=datetime.now(UTC)
    )


def progress(event: UsageEvent, completion: int) -> Progress:
    return Progress(event.event_id, 5, 1, completion, START + timedelta(seconds=completion))


def on_disk(folder: Path) -> list[UsageEvent]:
    """Read past the lock, as a process that finds the files later would."""
    events = []
    for path in folder.glob("*.sqlite"):
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            rows = database.execute("SELECT event FROM usage ORDER BY position").fetchall()
        events += [msgspec.msgpack.decode(row[0], type=UsageEvent) for row in rows]
    return events


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    spool = Spool(tmp_path)
    await spool.start()
    yield spool
    await spool.stop()


async def test_an_intent_is_on_disk_when_it_returns(spool: Spool, tmp_path: Path) -> None:
    event = intent()
    await spool.intend(event)
    assert on_disk(tmp_path) == [event]


async def test_a_settlement_is_on_disk_when_it_returns(spool: Spool, tmp_path: Path) -> None:
    event = intent()
    await spool.intend(event)
    await spool.settle(settled(event))
    assert [(e.outcome, e.completion_tokens) for e in on_disk(tmp_path)] == [("completed", 7)]
    assert len(await spool.to_ship(10)) == 1


async def test_first_counts_go_to_disk_at_once_and_later_ones_within_the_interval(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BILL-02: the bound on what a crash can cost."""
    event, other = intent(), intent()
    await spool.intend(event)
    spool.progress(progress(event, 1))
    await spool.intend(other)  # the writer has been round
    assert on_disk(tmp_path)[0].completion_tokens == 1
    for count in range(2, 100):
        spool.progress(progress(event, count))
    async with asyncio.timeout(5 * spool_module.FLUSH_S):
        while on_disk(tmp_path)[0].completion_tokens != 99:
            await asyncio.sleep(0.01)


async def test_late_counts_do_not_change_what_is_settled(spool: Spool) -> None:
    event = intent()
    await spool.intend(event)
    await spool.settle(settled(event, 3))
    spool.progress(progress(event, 50))
    await spool.settle(settled(event, 60))
    (shipped,) = await spool.to_ship(10)
    assert shipped.completion_tokens == 3


async def test_a_discarded_intent_leaves_nothing(spool: Spool, tmp_path: Path) -> None:
    event = intent()
    await spool.intend(event)
    await spool.discard(event.event_id)
    assert on_disk(tmp_path) == []


async def test_many_requests_share_a_commit(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = []
    commit = SpoolFile.commit
    monkeypatch.setattr(SpoolFile, "commit", lambda self: (commits.append(1), commit(self))[1])
    await asyncio.gather(*(spool.intend(intent()) for _ in range(200)))
    assert len(commits) < 20


async def test_a_disk_that_refuses_is_told_to_everyone_who_waits(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_self: SpoolFile) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(SpoolFile, "commit", full)
        answers = await asyncio.gather(*(spool.intend(intent()) for _ in range(5)), return_exceptions=True)
        assert all(isinstance(answer, SpoolError) for answer in answers)
    event = intent()
    await spool.intend(event)  # and it recovers
    await spool.settle(settled(event))
    assert [e.event_id for e in await spool.to_ship(10)] == [event.event_id]


async def test_a_clean_end_hands_over_what_was_not_shipped(tmp_path: Path) -> None:
    first, event = Spool(tmp_path), intent()
    await first.start()
    await first.intend(event)
    await first.settle(settled(event))
    await first.stop()
    second = Spool(tmp_path)
    await second.start()
    assert [e.event_id for e in await second.to_ship(10)] == [event.event_id]
    await second.remove([event.event_id])
    await second.stop()
    assert list(tmp_path.iterdir()) == []


async def test_a_living_process_keeps_its_file(tmp_path: Path) -> None:
    first, second, event = Spool(tmp_path), Spool(tmp_path), intent()
    await first.start()
    await first.intend(event)
    await second.start()
    assert await second.to_ship(10) == []
    await first.settle(settled(event))
    assert len(await first.to_ship(10)) == 1
    await second.stop()
    await first.stop()


def test_dying_while_adopting_doubles_nothing(tmp_path: Path) -> None:
    """BILL-02: the rows are in both files then; the same event, byte for byte."""
    dead = SpoolFile(tmp_path / "spool-a.sqlite")
    event = intent()
    dead.begin()
    dead.intend(event)
    dead.advance(progress(event, 3))
    dead.commit()
    half = SpoolFile(tmp_path / "spool-b.sqlite")
    half.begin()
    for left in dead.leftovers():
        half.settle(left)
    half.commit()
    dead.close()
    half.close()
    successor = open_spool(tmp_path)
    (recovered,) = successor.to_ship(10)
    assert recovered == msgspec.structs.replace(
        event, prompt_tokens=5, cached_tokens=1, completion_tokens=3, finished_at=START + timedelta(seconds=3)
    )
    assert len(list(tmp_path.glob("*.sqlite"))) == 1
    successor.close()


def test_a_damaged_file_is_left_for_a_person_and_stops_nobody(tmp_path: Path) -> None:
    damaged = tmp_path / "spool-x.sqlite"
    damaged.write_bytes(b"this is no database, but it may still hold something " * 100)
    spool = open_spool(tmp_path)
    assert damaged.exists()
    spool.close()


async def test_an_event_that_was_set_aside_stays_and_blocks_nobody(spool: Spool, tmp_path: Path) -> None:
    bad, good = intent(), intent()
    await spool.settle(settled(bad))
    await spool.settle(settled(good))
    await spool.set_aside(bad.event_id, "refused")
    assert [event.event_id for event in await spool.to_ship(10)] == [good.event_id]
    assert len(on_disk(tmp_path)) == 2


async def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError):
        await Spool(tmp_path / "file").start()


@pytest.mark.parametrize("point", ["intended", "progressed", "settled"])
def test_kill_9(tmp_path: Path, point: str) -> None:
    """BILL-02: a process that is killed without a word; the next one bills what was known last."""
    event_id = uuid4()
    program = textwrap.dedent(f"""
        import asyncio, sys
        from pathlib import Path
        from uuid import UUID
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_spool import Spool, intent, progress, settled

        async def main():
            spool, event = Spool(Path({str(tmp_path)!r})), intent(UUID({str(event_id)!r}))
            await spool.start()
            await spool.intend(event)
            if {point!r} != "intended":
                spool.progress(progress(event, 4))
                await spool.intend(intent())
            if {point!r} == "settled":
                await spool.settle(settled(event))
            print("there", flush=True)
            await asyncio.sleep(60)

        asyncio.run(main())
    """)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"there\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    spool = open_spool(tmp_path)
    event = next(event for event in spool.to_ship(10) if event.event_id == event_id)
    expected = {"intended": ("recovered", 0, 0), "progressed": ("recovered", 5, 4), "settled": ("completed", 5, 7)}
    assert (event.outcome, event.prompt_tokens, event.completion_tokens) == expected[point]
    spool.close()
