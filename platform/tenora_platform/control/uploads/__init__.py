"""Uploads of adapters that come in chunks and outlive a connection."""
