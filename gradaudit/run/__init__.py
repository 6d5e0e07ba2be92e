"""From settings to a report: opens the subject, runs the audits and fingerprints what was run."""
