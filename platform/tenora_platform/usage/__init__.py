"""Metering: one event per request, journalled on the gateway's disk and shipped to PostgreSQL once."""
