"""One process that computes: a base model, many adapters, the requests of all tenants in one batch."""
