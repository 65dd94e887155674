"""Two versions behind one adapter's name, the way back, and versions that were deleted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

STATUS = "ck_adapter_versions_status"
POINTERS = ("canary_version", "previous_version")


def upgrade() -> None:
    for pointer in POINTERS:
        op.add_column("adapters", sa.Column(f"{pointer}_id", sa.Uuid(), nullable=True))
        op.create_foreign_key(f"fk_adapters_{pointer}", "adapters", "adapter_versions", [f"{pointer}_id"], ["id"])
    op.add_column("adapters", sa.Column("canary_percent", sa.BigInteger(), nullable=True))
    canary = "(canary_version_id IS NULL) = (canary_percent IS NULL)"
    op.create_check_constraint(op.f("ck_adapters_canary"), "adapters", canary)
    op.create_check_constraint(op.f("ck_adapters_canary_percent"), "adapters", "canary_percent BETWEEN 1 AND 99")
    another = "canary_version_id <> active_version_id"
    op.create_check_constraint(op.f("ck_adapters_canary_is_another"), "adapters", another)
    promote: sa.Column[bool] = sa.Column("promote_when_ready", sa.Boolean(), server_default="true", nullable=False)
    op.add_column("adapter_versions", promote)
    op.add_column("adapter_versions", sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True))
    _statuses("'validating', 'ready', 'rejected', 'retired', 'deleted'")
    op.execute("UPDATE adapter_versions SET ended_at = now() WHERE status = 'rejected'")
    op.execute(
        "UPDATE adapter_versions v SET status = 'deleted', ended_at = now() FROM adapters a"
        " WHERE a.id = v.adapter_id AND a.deleted_at IS NOT NULL"
    )
    op.execute("UPDATE adapters SET active_version_id = NULL WHERE deleted_at IS NOT NULL")


def downgrade() -> None:
    op.execute("UPDATE adapter_versions SET status = 'retired' WHERE status = 'deleted'")
    _statuses("'validating', 'ready', 'rejected', 'retired'")
    op.drop_column("adapter_versions", "ended_at")
    op.drop_column("adapter_versions", "promote_when_ready")
    for constraint in ("canary", "canary_percent", "canary_is_another"):
        op.drop_constraint(op.f(f"ck_adapters_{constraint}"), "adapters", type_="check")
    op.drop_column("adapters", "canary_percent")
    for pointer in POINTERS:
        op.drop_constraint(f"fk_adapters_{pointer}", "adapters", type_="foreignkey")
        op.drop_column("adapters", f"{pointer}_id")


def _statuses(allowed: str) -> None:
    op.drop_constraint(op.f(STATUS), "adapter_versions", type_="check")
    op.create_check_constraint(op.f(STATUS), "adapter_versions", f"status IN ({allowed})")
