"""The verbs: everything that can pass between the server and the nodes, each declared once.

A verb is a dataclass; `verb.py` says what one declares. A tell has no answer, an ask has one. The rest
derives from these declarations: `nodes.py` sends the requests, `dispatch.py` carries them out, and
`transports/remote/schema.py` checks every message at both ends. Whatever is not declared is refused.

verb      carries                                   answers
--------  ----------------------------------------  ---------------------------------------------
census    windows                                   count and moments of readings, windows present
prepare   settings, scale, windows
turn      time step of a live task                  windows present
load      theta
inform    means of levels
embed     h_G
update    round, epochs, step
step      grad_h_c of a minibatch
pull      anchor and weight
forecast  levels of intervals
save      tag
restore   tag
inherit   run and tag
weights                                             theta
levels                                              levels of all training windows
encode    a minibatch or a split                    h_c
backward  h_G of a minibatch                        grad_h_G
score     a split                                   sums of errors against the copy, true ones if told
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, NamedTuple

import torch

from cnfgnn.algorithm.messages.number_rules import TAG, TAGS, InvalidCall
from cnfgnn.algorithm.messages.randomness import Draw, Minibatches
from cnfgnn.algorithm.messages.settings import NodeSettings
from cnfgnn.algorithm.messages.shapes import FLOAT64, FLOATS, UINT8, Allowed, Arrays, Expected, Sizes
from cnfgnn.algorithm.messages.verb import Ask, Reply, Tell, Verb, only
from cnfgnn.algorithm.messages.window_plan import WindowPlan, windows_of
from cnfgnn.config.declarations import Declaration
from cnfgnn.config.settings import Missing
from cnfgnn.data.windows import SPLITS, Split
from cnfgnn.errors import ConfigError
from cnfgnn.forecasters.intervals import LEVELS
from cnfgnn.models.gru import EncoderDecoder
from cnfgnn.models.params import Params, part

if TYPE_CHECKING:
    from cnfgnn.algorithm.clients import Clients

MOST_PARAMETERS = 1 << 31  # of all nodes of a site
LAST_ROW = 1 << 40  # of any series
ANCHOR = "anchor."  # before the names of weights in `pull`
LEVEL = "|".join(map(str, LEVELS))

Tag = Annotated[str, Declaration(form=TAG)]
Tags = Annotated[str, Declaration(form=TAGS)]  # with spaces between them
IntervalLevels = Annotated[str, Declaration(form=re.compile(f"({LEVEL})( ({LEVEL}))*"))]


# ---- set-up ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Census(Ask):
    """Count the readings, and say which of these windows each node has."""

    plan: WindowPlan
    missing: Missing

    purpose = "set-up"
    before_prepare = True
    computes = True

    def down(self, known: Sizes, came: Arrays) -> Expected:
        return known.starts(came)

    def up(self, known: Sizes, came: Arrays) -> Expected:
        expected = {f"has.{split}": Allowed(UINT8, [(known.n, came[split].shape[1])]) for split in SPLITS}
        return expected | {"moments": Allowed(FLOAT64, [(known.n, 3)])}

    def answer(self, nodes: Clients, arrays: Params) -> Reply:
        moments, has = nodes.census(windows=windows_of(self.plan, arrays), missing=self.missing)
        return {f"has.{split}": has[split].to(torch.uint8) for split in SPLITS} | {"moments": moments}


@dataclass(frozen=True)
class Prepare(Tell):
    """Scale the readings, number the windows and draw weights from the seed."""

    settings: NodeSettings
    mean: float
    std: Annotated[float, Declaration(above=0)]
    plan: WindowPlan

    purpose = "set-up"
    before_prepare = True
    computes = True

    def model(self) -> EncoderDecoder:
        """The node model that these settings describe."""
        try:
            return self.settings.node_model(self.plan.history, self.plan.horizon)
        except ConfigError as error:  # of a package that is not installed here, or a setting of its own
            raise InvalidCall(str(error)) from error

    def down(self, known: Sizes, came: Arrays) -> Expected:
        return known.starts(came)

    def after(self, known: Sizes, came: Arrays) -> Sizes:
        with torch.device("meta"):  # shapes alone
            theta = self.model().init(torch.Generator())
        parameters = known.n * sum(w.numel() for w in theta.values())
        if parameters > MOST_PARAMETERS:
            problem = f"the model is too large: the nodes of this site would have {parameters} parameters"
            raise InvalidCall(f"{problem}, and at most {MOST_PARAMETERS} are allowed")
        return replace(
            known,
            prepared=True,
            hidden=self.settings.model.sent_width,
            embedding=self.settings.model.embedding_width,
            levels=self.settings.model.level_width,
            horizon=self.plan.horizon,
            client_batch=self.settings.client_batch,
            server_batch=self.settings.server_batch,
            wire=self.settings.wire,
            windows={split: came[split].shape[1] for split in SPLITS},
            model={name: tuple(w.shape[1:]) for name, w in theta.items()},
        )

    def tell(self, nodes: Clients, arrays: Params) -> None:
        windows = windows_of(self.plan, arrays)
        nodes.prepare(settings=self.settings, mean=self.mean, std=self.std, windows=windows)


@dataclass(frozen=True)
class Turn(Ask):
    """In a live task: turn to the window whose history ends with this row, and say which nodes have it."""

    row: Annotated[int, Declaration(at_least=0, at_most=LAST_ROW)]

    purpose = "set-up"
    computes = True

    def up(self, known: Sizes, came: Arrays) -> Expected:
        return {"has": Allowed(UINT8, [(known.n, 1)])}

    def answer(self, nodes: Clients, arrays: Params) -> Reply:
        return {"has": nodes.turn(row=self.row).to(torch.uint8)}


# ---- tell -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load(Tell):
    """Go on from these weights: one model for all nodes, or one for each."""

    carries_weights = True

    def down(self, known: Sizes, came: Arrays) -> Expected:
        m = next((array.shape[0] for array in came.values()), 1)
        return known.weights(m) if m in (1, known.n) else known.weights(1, known.n)

    def tell(self, nodes: Clients, arrays: Params) -> None:
        nodes.load(theta=arrays)


@dataclass(frozen=True)
class Inform(Tell):
    """Use the means of the levels over neighbours and over all nodes, of all training windows."""

    states = ("means",)
    stays_bf16 = True

    def down(self, known: Sizes, came: Arrays) -> Expected:
        return known.states("means", (known.n, known.windows["train"], 2 * known.levels))

    def tell(self, nodes: Clients, arrays: Params) -> None:
        nodes.inform(means=only(arrays, "means"))


@dataclass(frozen=True)
class Embed(Tell):
    """Keep h_G of one minibatch or of all windows: for the next update, or for an evaluation."""

    for_evaluation: bool
    draw: Draw | None = None

    states = ("h_G",)
    stays_bf16 = True

    def down(self, known: Sizes, came: Arrays) -> Expected:
        if self.draw is not None:
            return known.states("h_G", (known.n, known.drawn(self.draw), known.embedding))
        splits = SPLITS if self.for_evaluation else ("train",)
        shapes = [(known.n, known.windows[split], known.embedding) for split in splits]
        return known.states("h_G", *shapes)

    def tell(self, nodes: Clients, arrays: Params) -> None:
        nodes.embed(h_G=only(arrays, "h_G"), for_evaluation=self.for_evaluation, draw=self.draw)


@dataclass(frozen=True)
class Update(Tell):
    """ClientUpdate: train for r_c epochs on your own readings, or for some of their minibatches."""

    r_g: int
    r_c: Annotated[int, Declaration(at_least=1)]
    step: int
    minibatches: Minibatches | None = None  # None: all of these epochs

    computes = True

    def __post_init__(self) -> None:
        chosen = self.minibatches
        if chosen is not None and chosen.until <= chosen.first:
            raise InvalidCall(f"first cannot be {chosen.first}: it must be less than until ({chosen.until})")

    def tell(self, nodes: Clients, arrays: Params) -> None:
        nodes.update(r_g=self.r_g, r_c=self.r_c, step=self.step, minibatches=self.minibatches)


@dataclass(frozen=True)
class Step(Tell):
    """Finish a `backward(learn=True)` with the server's part of the gradient at the encoder's output."""

    draw: Draw

    states = ("grad_h_c",)

    def down(self, known: Sizes, came: Arrays) -> Expected:
        return known.states("grad_h_c", (known.n, known.drawn(self.draw), known.hidden))

    def tell(self, nodes: Clients, arrays: Params) -> None:
        nodes.step(grad_h_c=only(arrays, "grad_h_c"), draw=self.draw)


@dataclass(frozen=True)
class Pull(Tell):
    """During the next updates, stay near the anchor: the mean of the neighbours' weights."""

    def down(self, known: Sizes, came: Arrays) -> Expected:
        n = known.n
        expected = {ANCHOR + name: Allowed(FLOATS, [(n, *shape)]) for name, shape in known.model.items()}
        return expected | {"weight": Allowed(FLOATS, [(n,)])}

    def tell(self, nodes: Clients, arrays: Params) -> None:
        nodes.pull(anchor=part(arrays, ANCHOR), weight=arrays["weight"])


class Ranges(NamedTuple):
    """The levels of the intervals that owners write beside their forecasts, in per cent."""

    levels: IntervalLevels

    @property
    def as_numbers(self) -> tuple[int, ...]:
        return tuple(int(level) for level in self.levels.split(" "))


@dataclass(frozen=True)
class Forecast(Tell):
    """Forecast the window that lies ahead. Its owner does so, from true readings; the nodes have no part."""

    ranges: Ranges | None = None  # None: no intervals

    purpose = "evaluation"
    computes = True

    def tell(self, nodes: Clients, arrays: Params) -> None:
        pass


@dataclass(frozen=True)
class Save(Tell):
    """Save your state under this tag, and delete all others but those to keep."""

    tag: Tag
    keep: Tags

    def tell(self, nodes: Clients, arrays: Params) -> None:
        nodes.save(tag=self.tag, keep=self.keep.split())


@dataclass(frozen=True)
class Restore(Tell):
    """Go back to the state that was saved under this tag."""

    tag: Tag

    def tell(self, nodes: Clients, arrays: Params) -> None:
        nodes.restore(tag=self.tag)


@dataclass(frozen=True)
class Inherit(Tell):
    """Begin with the weights of another run: those that you saved under this tag."""

    run: Tag
    tag: Tag

    def tell(self, nodes: Clients, arrays: Params) -> None:
        nodes.inherit(run=self.run, tag=self.tag)


# ---- ask ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weights(Ask):
    """Every node's shared weights."""

    carries_weights = True

    def up(self, known: Sizes, came: Arrays) -> Expected:
        return known.weights(known.n)

    def answer(self, nodes: Clients, arrays: Params) -> Reply:
        return nodes.weights()


@dataclass(frozen=True)
class Encode(Ask):
    """ClientEncode: h_c of one minibatch, or of all windows of a split."""

    split: Split
    draw: Draw | None = None

    computes = True
    states = ("h_c",)

    def up(self, known: Sizes, came: Arrays) -> Expected:
        count = known.windows[self.split] if self.draw is None else known.drawn(self.draw)
        return known.states("h_c", (known.n, count, known.hidden))

    def answer(self, nodes: Clients, arrays: Params) -> Reply:
        return {"h_c": nodes.encode(draw=self.draw, split=self.split)}


@dataclass(frozen=True)
class Levels(Ask):
    """The levels of all training windows: the numbers of h_c that are not learned."""

    computes = True
    states = ("levels",)

    def up(self, known: Sizes, came: Arrays) -> Expected:
        return known.states("levels", (known.n, known.windows["train"], known.levels))

    def answer(self, nodes: Clients, arrays: Params) -> Reply:
        return {"levels": nodes.levels()}


@dataclass(frozen=True)
class Backward(Ask):
    """ClientBackward: each node's gradient of its loss with respect to its h_G."""

    draw: Draw
    step: int
    learn: bool

    computes = True
    states = ("h_G", "grad_h_G")

    def down(self, known: Sizes, came: Arrays) -> Expected:
        return known.states("h_G", (known.n, known.drawn(self.draw), known.embedding))

    def up(self, known: Sizes, came: Arrays) -> Expected:
        n, count, width = came["h_G"].shape
        return known.states("grad_h_G", (n, count, width - 2 * known.levels))  # means are not learned

    def answer(self, nodes: Clients, arrays: Params) -> Reply:
        h_G = only(arrays, "h_G")
        return {"grad_h_G": nodes.backward(h_G=h_G, draw=self.draw, step=self.step, learn=self.learn)}


@dataclass(frozen=True)
class Score(Ask):
    """Each node's errors at each step ahead, summed over the windows of a split: against the copy, and, of
    owners who tell them, against the true readings (`told`; zeros of all others)."""

    split: Split

    purpose = "evaluation"
    computes = True

    def up(self, known: Sizes, came: Arrays) -> Expected:
        sums = Allowed(FLOAT64, [(known.n, known.horizon, 8)])
        return {"sums": sums, "told": sums}

    def answer(self, nodes: Clients, arrays: Params) -> Reply:
        sums = nodes.score(split=self.split)
        return {"sums": sums, "told": torch.zeros_like(sums)}


VERBS: Mapping[str, type[Verb]] = {
    verb.name: verb
    for verb in (
        Census,
        Prepare,
        Turn,
        Load,
        Inform,
        Embed,
        Update,
        Step,
        Pull,
        Forecast,
        Save,
        Restore,
        Inherit,
        Weights,
        Levels,
        Encode,
        Backward,
        Score,
    )
}
