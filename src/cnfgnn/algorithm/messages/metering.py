"""Counts the bytes of the arrays that crossed between server and nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from cnfgnn.algorithm.messages.calls import Call, sites_with
from cnfgnn.algorithm.messages.ledger import Bytes, Item, Ledger, Purpose


class Meter:
    """Enters every call and its answer into the ledger; `sites` are the rows of each site."""

    def __init__(self, ledger: Ledger, sites: Sequence[Tensor]) -> None:
        self.ledger, self.sites = ledger, sites

    def count(
        self, purpose: Purpose, call: Call, reply: Mapping[str, Tensor], rows: Tensor, present: Tensor
    ) -> None:
        """One call to these rows, of which those that are present took part."""
        self._add(Item(purpose, call.verb, "down"), call.tensors, rows, present)
        averaged = call.mean_by is not None
        self._add(Item(purpose, call.verb, "up"), reply, rows, present, averaged)

    def _add(
        self,
        item: Item,
        tensors: Mapping[str, Tensor],
        rows: Tensor,
        present: Tensor,
        averaged: bool = False,
    ) -> None:
        """With `averaged`, one row stands for the rows that all nodes would have sent."""
        if not tensors or not present.any():
            return
        n, answered = len(rows), rows[present]
        nodes, sites = len(answered), sites_with(answered, self.sites)
        per_node = per_site = 0
        for tensor in tensors.values():
            size = tensor.numel() * tensor.element_size()
            if tensor.shape[0] == 1 and n > 1:  # shared by all nodes
                per_node += size * nodes
                per_site += size * (nodes if averaged else sites)
            else:
                per_node += size // n * nodes
                per_site += size // n * nodes
        self.ledger.add(item, Bytes(per_node, per_site))
