"""Splits of records and scores that several audits' attacks share."""
