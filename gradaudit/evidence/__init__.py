"""Reports beside each other and over time, and reports without private words."""
