"""The first tables, and row-level security on every one that belongs to a tenant."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Whose rows a transaction sees is in `tenora.tenant`: a tenant's id, or '*' for the platform itself. Unset, it is
# null or empty, and no row is seen. FORCE binds the owner of the tables too.
VISIBLE = {
    "tenants": "current_setting('tenora.tenant', true) IN ('*', id::text)",
    "user_sessions": "current_setting('tenora.tenant', true) = '*'",
} | dict.fromkeys(
    (
        "adapter_versions",
        "adapters",
        "api_keys",
        "audit_entries",
        "exports",
        "quotas",
        "usage_conflicts",
        "usage_events",
        "users",
    ),
    "current_setting('tenora.tenant', true) IN ('*', tenant_id::text)",
)


def upgrade() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("detail", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entries")),
    )
    op.create_index(op.f("ix_audit_entries_at"), "audit_entries", ["at"], unique=False)
    op.create_table(
        "base_models",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("context_length", sa.BigInteger(), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_base_models")),
        sa.UniqueConstraint("fingerprint", name=op.f("uq_base_models_fingerprint")),
        sa.UniqueConstraint("name", name=op.f("uq_base_models_name")),
    )
    op.create_table(
        "prices",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("base_model", sa.Text(), nullable=False),
        sa.Column("effective_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("prompt_per_million", sa.Numeric(precision=18, scale=9), nullable=False),
        sa.Column("cached_per_million", sa.Numeric(precision=18, scale=9), nullable=False),
        sa.Column("completion_per_million", sa.Numeric(precision=18, scale=9), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "prompt_per_million >= 0 AND cached_per_million >= 0 AND completion_per_million >= 0",
            name=op.f("ck_prices_amounts"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_prices")),
        sa.UniqueConstraint("base_model", "effective_from", name="uq_prices_base_effective"),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("display_name", sa.String(length=200), nullable=False),
        sa.Column("timezone", sa.String(length=64), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
        sa.UniqueConstraint("name", name=op.f("uq_tenants_name")),
    )
    op.create_table(
        "usage_conflicts",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("event_id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("payload", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage_conflicts")),
    )
    op.create_table(
        "adapters",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("base_model_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("active_version_id", sa.Uuid(), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'", name=op.f("ck_adapters_name")),
        sa.ForeignKeyConstraint(
            ["base_model_id"], ["base_models.id"], name=op.f("fk_adapters_base_model_id_base_models")
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_adapters_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapters")),
        sa.UniqueConstraint("id", "tenant_id", name="uq_adapters_id_tenant"),
    )
    op.create_index(
        "uq_adapters_live_name",
        "adapters",
        ["tenant_id", "base_model_id", "name"],
        unique=True,
        postgresql_where="deleted_at IS NULL",
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("key_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("allowed_models", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_api_keys_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("prefix", name=op.f("uq_api_keys_prefix")),
    )
    op.create_index(op.f("ix_api_keys_tenant_id"), "api_keys", ["tenant_id"], unique=False)
    op.create_table(
        "exports",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("period_first_day", sa.Date(), nullable=False),
        sa.Column("period_last_day", sa.Date(), nullable=False),
        sa.Column("timezone", sa.String(length=64), nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("up_to_sequence", sa.BigInteger(), nullable=True),
        sa.Column("prices", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("totals", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("status IN ('pending', 'ready', 'failed')", name=op.f("ck_exports_status")),
        sa.CheckConstraint("starts_at < ends_at AND revision > 0", name=op.f("ck_exports_period")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_exports_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_exports")),
        sa.UniqueConstraint(
            "tenant_id", "period_first_day", "period_last_day", "revision", name="uq_exports_period_revision"
        ),
    )
    op.create_index(op.f("ix_exports_tenant_id"), "exports", ["tenant_id"], unique=False)
    op.create_table(
        "quotas",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("requests_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("tokens_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("requests_per_minute BETWEEN 0 AND 1000000000", name=op.f("ck_quotas_requests_per_minute")),
        sa.CheckConstraint("tokens_per_minute BETWEEN 0 AND 1000000000000", name=op.f("ck_quotas_tokens_per_minute")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_quotas_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_quotas")),
    )
    op.create_table(
        "usage_events",
        sa.Column("event_id", sa.Uuid(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("base_model", sa.Text(), nullable=False),
        sa.Column("adapter", sa.Text(), nullable=True),
        sa.Column("version_digest", sa.String(length=64), nullable=True),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("payload_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("cached_tokens BETWEEN 0 AND prompt_tokens", name=op.f("ck_usage_events_cached")),
        sa.CheckConstraint("prompt_tokens >= 0 AND completion_tokens >= 0", name=op.f("ck_usage_events_tokens")),
        sa.CheckConstraint("started_at <= finished_at", name=op.f("ck_usage_events_instants")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_usage_events_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("event_id", name=op.f("pk_usage_events")),
        sa.UniqueConstraint("sequence", name=op.f("uq_usage_events_sequence")),
    )
    op.create_index("ix_usage_events_tenant_finished", "usage_events", ["tenant_id", "finished_at"], unique=False)
    op.create_table(
        "users",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("username", sa.String(length=200), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=False),
        sa.Column("role", sa.String(length=32), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=True),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "role <> 'platform_admin' OR tenant_id IS NULL", name=op.f("ck_users_platform_admin_has_no_tenant")
        ),
        sa.CheckConstraint(
            "role IN ('platform_admin', 'tenant_admin', 'tenant_viewer', 'billing')", name=op.f("ck_users_role")
        ),
        sa.CheckConstraint(
            "role NOT LIKE 'tenant%' OR tenant_id IS NOT NULL", name=op.f("ck_users_tenant_role_has_tenant")
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_users_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("username", name=op.f("uq_users_username")),
    )
    op.create_table(
        "adapter_versions",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("adapter_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("report", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "status IN ('validating', 'ready', 'rejected', 'retired')", name=op.f("ck_adapter_versions_status")
        ),
        sa.CheckConstraint("number > 0 AND size_bytes >= 0", name=op.f("ck_adapter_versions_counts")),
        sa.ForeignKeyConstraint(
            ["adapter_id", "tenant_id"], ["adapters.id", "adapters.tenant_id"], name="fk_version_adapter"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapter_versions")),
        sa.UniqueConstraint("adapter_id", "number", name="uq_adapter_versions_number"),
    )
    op.create_table(
        "user_sessions",
        sa.Column("token_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_user_sessions_user_id_users"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("token_sha256", name=op.f("pk_user_sessions")),
    )
    # Adapters and versions point at each other: this half of the ring comes once both are there.
    op.create_foreign_key("fk_adapters_active_version", "adapters", "adapter_versions", ["active_version_id"], ["id"])

    for table, visible in VISIBLE.items():
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY tenant_scope ON {table} USING ({visible}) WITH CHECK ({visible})")


def downgrade() -> None:
    op.drop_constraint("fk_adapters_active_version", "adapters", type_="foreignkey")
    op.drop_table("user_sessions")
    op.drop_table("adapter_versions")
    op.drop_table("users")
    op.drop_index("ix_usage_events_tenant_finished", table_name="usage_events")
    op.drop_table("usage_events")
    op.drop_table("quotas")
    op.drop_index(op.f("ix_exports_tenant_id"), table_name="exports")
    op.drop_table("exports")
    op.drop_index(op.f("ix_api_keys_tenant_id"), table_name="api_keys")
    op.drop_table("api_keys")
    op.drop_index("uq_adapters_live_name", table_name="adapters", postgresql_where="deleted_at IS NULL")
    op.drop_table("adapters")
    op.drop_table("usage_conflicts")
    op.drop_table("tenants")
    op.drop_table("prices")
    op.drop_table("base_models")
    op.drop_index(op.f("ix_audit_entries_at"), table_name="audit_entries")
    op.drop_table("audit_entries")
