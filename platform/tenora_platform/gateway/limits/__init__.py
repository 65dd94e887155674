"""Limits per minute: pure arithmetic, and one atomic script on Redis."""
