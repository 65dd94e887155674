"""What a tenant used, by hour or day."""
