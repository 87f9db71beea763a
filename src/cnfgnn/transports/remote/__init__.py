"""The federated engine: the same verbs between a server and sites that trust each other with nothing else."""
