"""What a scan does in the time it has: which audits, in which order, how exactly."""
