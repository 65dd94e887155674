"""A tenant's limits."""
