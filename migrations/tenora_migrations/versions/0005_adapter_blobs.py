"""Which adapters' files may lie in the blob store, so that those of no version can go."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "adapter_blobs",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("noted_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("generation", sa.Uuid(), nullable=True),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_adapter_blobs")),
    )
    op.create_index(op.f("ix_adapter_blobs_noted_at"), "adapter_blobs", ["noted_at"], unique=False)
    op.create_index("ix_adapter_versions_digest", "adapter_versions", ["digest"], unique=False)
    op.execute(
        "INSERT INTO adapter_blobs (digest, generation) SELECT digest, gen_random_uuid() FROM adapter_versions"
        " GROUP BY digest"
    )


def downgrade() -> None:
    op.drop_index("ix_adapter_versions_digest", table_name="adapter_versions")
    op.drop_index(op.f("ix_adapter_blobs_noted_at"), table_name="adapter_blobs")
    op.drop_table("adapter_blobs")
