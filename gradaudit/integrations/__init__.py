"""The observer inside frameworks of federated and distributed training, one framework a file."""
