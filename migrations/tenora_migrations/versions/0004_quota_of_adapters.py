"""How many adapters a tenant may have, and how many bytes of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

LIMITS = {"max_adapters": 10**6, "max_adapter_bytes": 10**15}


def upgrade() -> None:
    for column, most in LIMITS.items():
        op.add_column("tenants", sa.Column(column, sa.BigInteger(), nullable=True))
        op.create_check_constraint(op.f(f"ck_tenants_{column}"), "tenants", f"{column} BETWEEN 0 AND {most}")


def downgrade() -> None:
    for column in LIMITS:
        op.drop_constraint(op.f(f"ck_tenants_{column}"), "tenants", type_="check")
        op.drop_column("tenants", column)
