"""The background worker's process."""
