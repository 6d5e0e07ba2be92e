"""Planning of a scan with a time budget: which audits, in which order, how exactly."""
