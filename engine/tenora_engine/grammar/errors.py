"""What a grammar can have wrong."""

from __future__ import annotations


class GrammarError(Exception):
    """The grammar is malformed, asks for what would not be enforced, or costs too much. Safe to show its tenant."""
