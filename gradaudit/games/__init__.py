"""What several audits attack with: splits of records, and scores."""
