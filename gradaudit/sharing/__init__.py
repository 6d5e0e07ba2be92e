"""What the adversary sees: shared updates of clients, singly and thousands at a time."""
