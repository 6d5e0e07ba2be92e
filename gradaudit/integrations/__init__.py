"""Observer and canaries inside federated frameworks, one framework a file or folder."""
