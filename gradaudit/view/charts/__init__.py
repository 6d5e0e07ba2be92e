"""What of a report is drawn: curves of a sweep, and how well readers rank."""
