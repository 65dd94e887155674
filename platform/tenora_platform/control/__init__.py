"""The control plane (`/api/v1`): synchronous, a slice per noun, one transaction per request."""
