"""Cross-node federated graph neural networks: sensors forecast together without sharing their readings."""
