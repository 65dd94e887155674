"""What adapters' configs may name as a base model, besides the name that it is served under."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column: sa.Column[list[str]] = sa.Column(
        "accepted_names", postgresql.ARRAY(sa.Text()), server_default="{}", nullable=False
    )
    op.add_column("base_models", column)


def downgrade() -> None:
    op.drop_column("base_models", "accepted_names")
