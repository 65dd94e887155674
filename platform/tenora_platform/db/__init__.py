"""The tables, and sessions that know whose rows they may see."""
