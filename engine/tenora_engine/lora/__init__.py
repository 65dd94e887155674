"""Adapters on their way to the batch: fetched and verified, kept on the host, placed in slots, pinned while in use."""
