"""What of a report is drawn: curves of a sweep, brackets, and how well readers rank."""
