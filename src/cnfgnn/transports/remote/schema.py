"""Checks every message against what the verbs declare, on its header, before any array is allocated.

A site knows how many nodes it has and, since `prepare`, the model, the windows and the minibatches. These
determine the name, type and shape of every array that may arrive. The server knows what it asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.algorithm.messages.number_rules import InvalidCall
from cnfgnn.algorithm.messages.shapes import Sizes, check_arrays
from cnfgnn.algorithm.messages.verb import Verb
from cnfgnn.algorithm.messages.verbs import VERBS
from cnfgnn.transports.remote.header import MOST_HEADER, PREFIX, Declared, Malformed, Part


class Refused(Malformed):
    """A well-formed message with something in it that its verb does not allow."""

    def __init__(self, verb: str, reason: str) -> None:
        super().__init__(f"{verb}: {reason}")
        self.verb, self.reason = verb, reason


CallHeader = Call | Part  # a call, or its entry in a message's header


def check_calls(calls: Sequence[CallHeader], known: Sizes) -> Sizes:
    """At a site: refuse calls that it cannot carry out; returns what is known once they are carried out."""
    for call in calls:
        with _refusing(call.verb):
            request = read_request(call)
            if not known.prepared and not request.before_prepare:
                raise InvalidCall("the site has not been prepared")
            if request.minibatch is not None and not known.drawn(request.minibatch):
                raise InvalidCall(f"there is no minibatch {request.minibatch.number}")
            check_arrays(request.down(known, call.tensors), call.tensors)
            known = request.after(known, call.tensors)
    return known


def check_answers(answers: Sequence[Part], calls: Sequence[CallHeader], known: Sizes) -> None:
    """At the server: refuse answers that do not belong to these calls; `known` is from before the calls."""
    if len(answers) > len(calls):
        raise Refused(calls[-1].verb, f"{len(answers)} answers came to {len(calls)} calls")
    for answer, call in zip(answers, calls, strict=False):
        if answer.problem is not None:
            return  # of any verb: a site that refuses a message answers nothing else
        if answer.verb != call.verb:
            raise Refused(call.verb, f"the answer is to {answer.verb}")
        with _refusing(call.verb):
            request = read_request(call)
            known = request.after(known, call.tensors)
            check_arrays(request.up(known, call.tensors), answer.tensors)
    if len(answers) < len(calls):
        raise Refused(calls[len(answers)].verb, "there is no answer")


def largest_answer(calls: Sequence[CallHeader], known: Sizes) -> int:
    """The largest number of bytes that the answers to these calls can have: more is not received."""
    total = PREFIX.size + MOST_HEADER
    for call in calls:
        request = read_request(call)
        known = request.after(known, call.tensors)
        for dtypes, shapes in request.up(known, call.tensors).values():
            total += max(Declared(dtype, shape).padded for dtype in dtypes for shape in shapes)
    return total


def after(calls: Sequence[CallHeader], known: Sizes) -> Sizes:
    """What is known of a site that has carried out these calls."""
    for call in calls:
        known = read_request(call).after(known, call.tensors)
    return known


def read_request(call: CallHeader) -> Verb:
    """The numbers of a call as its verb declares them."""
    if call.verb not in VERBS:
        raise Refused(call.verb, "there is no such verb")
    return VERBS[call.verb].read(call.numbers)


@contextmanager
def _refusing(verb: str) -> Iterator[None]:
    """Name the verb in a refusal."""
    try:
        yield
    except InvalidCall as problem:
        raise Refused(verb, str(problem)) from None
