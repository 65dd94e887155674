"""A tenant's adapters and their versions."""
