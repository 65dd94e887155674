"""The KV cache's bookkeeping: which block belongs to whom, and which can be found again. Pure: no torch, no clock."""
