#!/bin/sh
# Runs once, when the database is made. The platform's role owns its database and is no superuser: row-level
# security does not bind a superuser.
set -eu
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --set password="$TENORA_DATABASE_PASSWORD" <<'SQL'
CREATE ROLE tenora LOGIN NOSUPERUSER PASSWORD :'password';
CREATE DATABASE tenora OWNER tenora;
SQL
