"""Small federated training: clients, their data, the algorithms, and the checkpoints of its rounds.

``settings`` is light; ``server.train_rounds`` trains; ``resume`` keeps a run in a folder.
"""
