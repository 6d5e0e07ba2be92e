"""What a real attacker does with a shared update."""
