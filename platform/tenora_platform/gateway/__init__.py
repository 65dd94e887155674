"""The tenants' API (`/v1`): asynchronous, and the only part that talks to engines."""
