"""Uploads that come in chunks and outlive a connection."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

VISIBLE = "current_setting('tenora.tenant', true) IN ('*', tenant_id::text)"


def upgrade() -> None:
    op.create_table(
        "adapter_uploads",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("base_model", sa.Text(), nullable=True),
        sa.Column("confirm_base", sa.Boolean(), nullable=False),
        sa.Column("promote", sa.Boolean(), nullable=False),
        sa.Column("files", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("received_bytes", sa.BigInteger(), nullable=False),
        sa.Column("num_chunks", sa.BigInteger(), nullable=False),
        sa.Column("finishing_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("adapter_id", sa.Uuid(), nullable=True),
        sa.Column("version_id", sa.Uuid(), nullable=True),
        sa.Column("error", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "received_bytes BETWEEN 0 AND size_bytes AND num_chunks >= 0", name=op.f("ck_adapter_uploads_counts")
        ),
        sa.CheckConstraint("(adapter_id IS NULL) = (version_id IS NULL)", name=op.f("ck_adapter_uploads_outcome")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_adapter_uploads_tenant_id_tenants")),
        sa.ForeignKeyConstraint(
            ["version_id"], ["adapter_versions.id"], name=op.f("fk_adapter_uploads_version_id_adapter_versions")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapter_uploads")),
    )
    for column in ("tenant_id", "expires_at"):
        op.create_index(op.f(f"ix_adapter_uploads_{column}"), "adapter_uploads", [column], unique=False)
    op.execute("ALTER TABLE adapter_uploads ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE adapter_uploads FORCE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY tenant_scope ON adapter_uploads USING ({VISIBLE}) WITH CHECK ({VISIBLE})")


def downgrade() -> None:
    op.drop_table("adapter_uploads")
