"""Conversations with many sites at once, in one thread.

A conversation is a generator: it yields what it sends to its site, and goes on with the answer or with the
reason why none came. Whoever holds it does the waiting. So the protocol of one site (`link.py`) is written as
if nobody else existed, and an exchange with hundreds of sites takes as long as the slowest of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from cnfgnn.transports.remote.messages import Buffer, Channel

Outcome = TypeVar("Outcome")


class Sent(NamedTuple):
    """A note to a site over a channel, and the seconds in which it has to answer."""

    channel: Channel
    site: str
    note: bytes
    timeout: float


Conversation = Generator[Sent, Buffer, Outcome]
Answered = Callable[[Buffer | Exception], None]


def hold(conversation: Conversation[Outcome]) -> Outcome:
    """Hold one conversation to its end, and wait for every answer."""
    answer: Buffer | Exception | None = None
    while True:
        try:
            sent = _advanced(conversation, answer)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        answer = _asked(sent)


def _advanced(conversation: Conversation[Outcome], answer: Buffer | Exception | None) -> Sent:
    """What is sent next, after this answer; a conversation begins with None."""
    if isinstance(answer, Exception):
        return conversation.throw(answer)
    return conversation.send(answer)  # type: ignore[arg-type]


def _asked(sent: Sent) -> Buffer | Exception:
    try:
        return sent.channel.ask(sent.site, sent.note, sent.timeout)
    except Exception as problem:  # the conversation handles those that it expects
        return problem


class Callers:
    """Threads that wait for answers, each for one at a time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._ahead: SimpleQueue[tuple[Sent, Answered] | None] = SimpleQueue()
        self._threads = 0

    def send(self, sent: Sent, answered: Answered) -> None:
        """Send a note; `answered` is called with what came of it, in another thread."""
        self._ahead.put((sent, answered))
        if self._threads < self.most:
            self._threads += 1
            threading.Thread(target=self._wait_for_answers, name="exchange", daemon=True).start()

    def close(self) -> None:
        for _ in range(self._threads):
            self._ahead.put(None)

    def _wait_for_answers(self) -> None:
        while (one := self._ahead.get()) is not None:
            sent, answered = one
            answered(_asked(sent))


def hold_all(conversations: Sequence[Conversation[Outcome]], callers: Callers) -> list[Outcome]:
    """Hold all conversations at the same time; returns their outcomes in the same order."""
    outcomes: dict[int, Outcome] = {}
    arrived: SimpleQueue[tuple[int, Buffer | Exception]] = SimpleQueue()

    def advance(k: int, answer: Buffer | Exception | None) -> None:
        try:
            sent = _advanced(conversations[k], answer)
        except StopIteration as end:
            outcomes[k] = end.value
        else:
            callers.send(sent, lambda answer: arrived.put((k, answer)))

    try:
        for k in range(len(conversations)):
            advance(k, None)
        while len(outcomes) < len(conversations):
            advance(*arrived.get())
    finally:  # if one of them failed, the others end here
        for conversation in conversations:
            conversation.close()
    return [outcomes[k] for k in range(len(conversations))]
