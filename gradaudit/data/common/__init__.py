"""Shared parts of the adapters: from files and arrays to columns, inputs and records."""
