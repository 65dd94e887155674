"""The database's history (Alembic)."""
