"""What of a report is drawn: the heat map, curves of a sweep, and how well readers rank."""
