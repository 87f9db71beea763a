"""Which models that were trained beside a live task are kept: the server tells its sites with a training."""

from __future__ import annotations

from typing import Any, NamedTuple

from cnfgnn.algorithm.messages.number_rules import TAG


class KeptStates(NamedTuple):
    """What a retraining tells its sites.

    models  how the names of its models begin: with that of the run that went live first
    kept    the states of these models that stay, by the name that a site has them under
    """

    models: str
    kept: tuple[str, ...]

    @classmethod
    def told(cls, fields: Any) -> KeptStates | None:
        """As they came with the task; None if they are invalid."""
        if not isinstance(fields, dict):
            return None
        models, kept = fields.get("models"), fields.get("kept")
        if not isinstance(kept, list) or not kept or not all(isinstance(name, str) for name in kept):
            return None
        valid = isinstance(models, str) and all(map(TAG.fullmatch, [models, *kept]))
        return cls(str(models), tuple(kept)) if valid else None
