"""Simulations of intervals whose truth is known, one subject a file; ``coverage.py`` plays them."""
