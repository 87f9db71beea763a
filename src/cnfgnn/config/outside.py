"""Methods of other packages: registered in this process, or offered by a package that is installed.

A package offers a method by an entry point of the group `cnfgnn.methods`, whose name is the method's. Files
and messages hold only this name. It is looked up among the entry points of installed packages, so no file and
no server can have a package loaded that nobody installed here.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cnfgnn.config.declarations import Setting, fields_of, settings_of
from cnfgnn.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "cnfgnn.methods"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
OWN = "own"  # the section of settings that a method brings along
_registered: dict[str, Added] = {}
_only: list[str] | None = None  # the methods that this process may load, if it is said


@dataclass(frozen=True, kw_only=True)
class Added:
    """What a method of another package brings along; nothing in a method of this one.

    settings    its changes to the defaults, such as {"model.embedding": 16}
    own         a frozen dataclass of settings of its own, each declared with `cnfgnn.setting`: own.NAME
    network     makes the Graph Network of (ModelConfig, own settings): a module from h_c (n b h), `Edges` and
                `present` to h_G
    node_model  makes the node model, an `EncoderDecoder`, of (ModelConfig, own settings, history, horizon,
                InputCounts); every site of a federation needs the package for it
    server      a class derived from that of its strategy, `Alternating` or `Split`
    """

    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)
    own: type | None = None
    network: Callable[..., Any] | None = None
    node_model: Callable[..., Any] | None = None
    server: type | None = None


def add(name: str, method: Added) -> Added | None:
    """Make a method known in this process; returns the one that it knew by this name before."""
    problem = ""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        problem = "use a-z, 0-9 and hyphens, at most 40"
    elif _is_taken(name):
        problem = "cnfgnn has a method of this name"
    if problem:
        raise ConfigError("method", f"a package cannot add {name!r}: {problem}")
    if method.own is not None:
        _check_own(name, method.own)
    before, _registered[name] = _registered.get(name), method
    return before


@contextmanager
def added_if_it_works(name: str, method: Added) -> Iterator[None]:
    """Make a method known; if what is inside fails, this process goes on with the one that it knew before."""
    before = add(name, method)
    try:
        yield
    except BaseException:
        if before is None:
            del _registered[name]
        else:
            _registered[name] = before
        raise


def _is_taken(name: str) -> bool:
    from cnfgnn.config.presets import ALIASES, METHOD_SETTINGS

    return name in METHOD_SETTINGS or name in ALIASES


def _check_own(name: str, own: Any) -> None:
    """Refuse settings that could not be written to a run's folder and read again."""
    if not isinstance(own, type) or not dataclasses.is_dataclass(own):
        raise ConfigError("method", f"the settings of {name} must be a dataclass, not {own!r}")
    try:
        declared = fields_of(own)
    except Exception as error:  # whatever its annotations are
        problem = f"the settings of {name} have types that cannot be read"
        raise ConfigError("method", f"{problem} ({type(error).__name__}: {error})") from error
    if not declared or not all(setting.help for setting in declared):
        problem = f"the settings of {name} need `cnfgnn.setting` with a sentence of help, each of them"
        raise ConfigError("method", problem)
    if own.__hash__ is None:  # as of a dataclass that is not frozen; a configuration is hashed
        raise ConfigError("method", f"the settings of {name} must be a frozen dataclass")
    for setting in declared:
        one = dataclasses.replace(setting, key=f"{OWN}.{setting.name}")
        if not one.can_be_set:
            problem = f"{name} cannot have a setting of the type {one.kind}"
            raise ConfigError(
                one.key, problem, ["int", "float", "bool", "str", "Literal", "tuple of numbers"]
            )
        one.check(one.read(one.default))


def names() -> list[str]:
    """The methods of other packages, none of which is loaded for this."""
    known = [*_registered, *(n for n in _offered() if n not in _registered and not _is_taken(n))]
    return known if _only is None else [name for name in known if name in _only]


def is_missing(name: str) -> bool:
    """Whether this might be a method of a package that is not installed here."""
    return not _is_taken(name) and name not in names()


def load_only(methods: Iterable[str]) -> None:
    """Have this process use no method of another package but these, whatever it is asked for."""
    global _only
    _only = list(methods)


def find(name: str) -> Added | None:
    """The method of another package, which is loaded now; None if there is none of this name.

    Raises:
        ConfigError: The package cannot be loaded, or what it offers is no method of this name.
    """
    if not isinstance(name, str) or name not in names():
        return None
    if name not in _registered:
        add(name, _loaded(name, _offered()[name]))
    return _registered[name]


@functools.cache
def _offered() -> dict[str, list[EntryPoint]]:
    from importlib.metadata import entry_points  # late: it loads parsers of mails and archives

    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        if NAME.fullmatch(point.name):
            found.setdefault(point.name, []).append(point)
    return found


def _loaded(name: str, points: list[EntryPoint]) -> Added:
    packages = sorted({point.dist.name if point.dist else "?" for point in points})
    if len({point.value for point in points}) > 1:
        listed = " and ".join(packages)
        raise ConfigError("method", f"{name} is offered by {listed}: uninstall all of them but one")
    try:
        method = points[0].load()
    except (Exception, SystemExit) as error:  # whatever the package does when it is imported
        problem = f"the package {packages[0]}, which offers {name}, cannot be loaded"
        first = str(error).strip().partition("\n")[0]
        raise ConfigError("method", f"{problem} ({type(error).__name__}: {first})") from error
    if not isinstance(method, Added) or getattr(method, "name", None) != name:
        problem = f"the entry point {name} of the package {packages[0]} must be a cnfgnn.Method of this name"
        raise ConfigError("method", problem)
    return method


# ---- settings of a method's own ---------------------------------------------------------------------------


def own_settings(method: str) -> Any:
    """The settings that a method brings along, at their defaults; None if it has none."""
    found = find(method)
    return None if found is None or found.own is None else found.own()


def declared(own: Any) -> tuple[Setting, ...]:
    """The declarations of a method's own settings, with keys such as own.heads."""
    return () if own is None else settings_of(type(own), f"{OWN}.")


def written(own: Any) -> str:
    """The own settings that nodes get, as an inline table of TOML, for a message."""
    from cnfgnn.config.toml import toml_value

    sent = [setting for setting in declared(own) if setting.sent_to_nodes]
    table = f"{{{', '.join(f'{s.name} = {toml_value(getattr(own, s.name))}' for s in sent)}}}"
    return "".join(c if c.isascii() else f"\\U{ord(c):08x}" for c in table)  # as messages are


def read(method: str, text: str) -> Any:
    """Own settings from a message; ConfigError if one is none that nodes get, or has no valid value."""
    default = own_settings(method)
    known = {setting.name: setting for setting in declared(default) if setting.sent_to_nodes}
    try:
        table = tomllib.loads(f"{OWN} = {text}")[OWN]
    except (ValueError, RecursionError) as error:
        raise ConfigError(OWN, "these are no settings") from error
    values = {}
    for name, value in table.items():
        if name not in known:
            raise ConfigError(f"{OWN}.{name}", f"{method} has no such setting", known)
        values[name] = known[name].read(value)
        known[name].check(values[name])
    return None if default is None else type(default)(**values)
