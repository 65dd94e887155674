"""The price book."""
