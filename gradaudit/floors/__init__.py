"""How near any attacker at all can come to a record, given the noise on its update and a prior."""
