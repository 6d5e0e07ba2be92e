"""Models that were built or changed to read single records off a client's update."""
