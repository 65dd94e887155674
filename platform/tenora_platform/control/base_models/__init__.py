"""The base models that engines serve."""
