"""Plans a scan within a time budget: which audits run, in which order, and how exactly."""
