"""Shared updates of clients as the adversary sees them, singly and thousands at a time."""
