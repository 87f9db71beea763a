"""How further inputs are blurred: each by its own sigma, unless its owner declares it public."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from cnfgnn.config.declarations import is_number
from cnfgnn.data.inputs import Input
from cnfgnn.errors import ConfigError
from cnfgnn.privacy.noise import LEAST_SIGMA

INPUT_BLURS = "privacy.inputs"
PUBLIC = "public"
HOW = 'the noise in its own unit, such as 5, or "public"'


def read_input_blurs(text: str) -> dict[str, float]:
    """The sigmas in `privacy.inputs`, such as "flow=200, holiday=public"; 0 stands for public."""
    blurs: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (side.strip() for side in part.partition("="))
        if not equals or not name:
            raise ConfigError(INPUT_BLURS, f"{part!r} is not like flow=200 or holiday=public")
        number: object = value
        if value != PUBLIC:
            try:
                number = float(value)
            except ValueError:
                number = value
        blurs[name] = input_blur(f"{INPUT_BLURS}: {name}", number)
    return blurs


def input_blur(key: str, value: object) -> float:
    """The sigma that an owner sets for an input; 0 stands for public."""
    if value == PUBLIC:
        return 0.0
    if not is_number(value) or value < LEAST_SIGMA:
        raise ConfigError(key, f"must be {HOW}, not {value!r:.60}")
    return float(value)


def check_input_blurs(
    inputs: Iterable[Input], blurs: Mapping[str, float], readings_are_blurred: bool, key: Callable[[str], str]
) -> None:
    """Refuse inputs about which nothing is said while readings are blurred, and names that do not exist.

    An input may tell the readings: what nobody has decided about must not leave as it is. `key` is what the
    setting for an input is called.
    """
    names = [one.name for one in inputs]
    for name in blurs:
        if name not in names:
            raise ConfigError(key(name), f"there is no variable or covariate {name!r}", names)
    for name in names:
        if readings_are_blurred and name not in blurs:
            problem = (
                f"the readings are blurred, and nothing is said about {name!r}: set {name}=5, if that is the"
                f" noise it needs in its own unit, or {name}=public"
            )
            raise ConfigError(key(name), problem)
