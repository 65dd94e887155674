"""The `tenora` command."""
