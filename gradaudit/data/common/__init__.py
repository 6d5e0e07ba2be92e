"""What the adapters share: from files and arrays to columns, inputs and records."""
