"""Adapters' files in the blob store: how they get there, and when they go.

A version's row and its files cannot come in one transaction, so a note of the digest is made before the files are
written, and outlives them. Files that no version needs go in two steps, so that a crash between them leaves nothing
half there that somebody believes in:

    condemn   the note loses its generation: what was published under it counts no more
    remove    the manifest, the other files, the note

Both take only notes that nobody holds, are past KEEP_FOR, and look for versions after they have the row. A publisher
gives the note a generation, writes the files, and makes the version while it holds the note with that very generation;
if it is another one by then, or the note is gone, it publishes again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, exists, func, or_, select
from sqlalchemy.dialects.postgresql import insert

from tenora_adapters.blobs import BlobError, BlobStore
from tenora_adapters.publish import unpublish
from tenora_platform.control.adapters.states import LIVE
from tenora_platform.control.transaction import Transaction
from tenora_platform.db.models import AdapterBlobs, AdapterVersion

# After its last upload, and after its last version has ended: requests in flight may still load it.
KEEP_FOR: Final = timedelta(hours=1)
# Since it began or, in a folder, last grew. No process takes so long to write one file.
SWEEP_AFTER: Final = timedelta(days=1)
_BATCH: Final = 50  # locks are held while files are removed
_log = logging.getLogger(__name__)


def note_digest(work: Transaction, digest: str) -> uuid.UUID:
    """Say that files of this digest are about to be written, in a transaction of its own; the note's generation."""
    new = insert(AdapterBlobs).values(digest=digest, generation=uuid.uuid4())
    kept = func.coalesce(AdapterBlobs.generation, new.excluded.generation)
    noted = new.on_conflict_do_update(index_elements=["digest"], set_={"noted_at": func.now(), "generation": kept})
    return work.session.scalars(noted.returning(AdapterBlobs.generation)).one()  # type: ignore[return-value]


def hold_note(work: Transaction, digest: str, generation: uuid.UUID) -> bool:
    """Keep the files that were published under this generation until the transaction ends; False: they may be gone."""
    query = select(AdapterBlobs).where(AdapterBlobs.digest == digest, AdapterBlobs.generation == generation)
    return work.session.scalar(query.with_for_update(read=True, key_share=True)) is not None


def collect(work: Transaction) -> None:
    """Remove the files that the last run condemned, then condemn what no version needs.

    Before that, while no row is locked, remove what killed processes left half written, whatever it was to be.
    """
    _sweep(work.resources.blobs)
    for note in _unneeded(work, AdapterBlobs.generation.is_(None)):
        try:
            unpublish(work.resources.blobs, note.digest)
        except BlobError as error:
            _log.warning("files of adapter %s could not be removed, and stay for the next run: %s", note.digest, error)
        else:
            work.session.delete(note)
            _log.info("the files of adapter %s were removed: no version needs them", note.digest)
    for note in _unneeded(work, AdapterBlobs.generation.is_not(None)):
        note.generation = None


def _sweep(store: BlobStore) -> None:
    try:
        if num_left := store.sweep(datetime.now(UTC) - SWEEP_AFTER):
            _log.info("%d unfinished blobs were removed: whoever wrote them is gone", num_left)
    except BlobError as error:
        _log.warning("unfinished blobs could not be removed, and stay for the next run: %s", error)


def _unneeded(work: Transaction, condition: ColumnElement[bool]) -> Iterator[AdapterBlobs]:
    """Notes whose files nobody needs, locked. Such as somebody holds, or is about to have, are left out."""
    long_ago = func.now() - KEEP_FOR
    needed = exists().where(
        AdapterVersion.digest == AdapterBlobs.digest,
        or_(AdapterVersion.status.in_(LIVE), AdapterVersion.ended_at > long_ago),
    )
    candidates = (
        select(AdapterBlobs)
        .where(condition, AdapterBlobs.noted_at < long_ago, ~needed)
        .order_by(AdapterBlobs.noted_at)
        .limit(_BATCH)
        .with_for_update(skip_locked=True)
    )
    for note in work.session.scalars(candidates).all():
        # A version may have been made after this query began, and before it had the lock.
        if not work.session.scalar(select(needed).where(AdapterBlobs.digest == note.digest)):
            yield note
