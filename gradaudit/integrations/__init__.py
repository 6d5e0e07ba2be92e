"""Observer and canaries inside frameworks of federated training, one framework a file or folder."""
