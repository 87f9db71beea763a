"""The suite that applies to every method: resume, partition, ledger, absent nodes, privacy."""

import cnfgnn.testing


def test_the_method_passes_what_every_method_must_pass() -> None:
    cnfgnn.testing.check_method("neighbour-attention")
