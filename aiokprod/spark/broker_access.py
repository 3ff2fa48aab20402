"""`BrokerAccess`: are we shut out of the cluster, or only of a broker that somebody else stands in
for?

A wrong credential must be told on the driver, before anything is sent. One broker that refuses us
(still reading its users after a restart, or set up differently) must not fail what any other broker
can answer, such as the commit of a stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aiokprod.errors import AuthenticationError, DialError, KafkaError


class _Word(NamedTuple):
    """What a broker says: since when, last at what instant; without a refusal it is unreachable."""

    since: float
    last: float
    refusal: AuthenticationError | None


class BrokerAccess:
    """The newest word of each broker that does not let us in. Instants are `loop.time()`.

    A word counts for a call only if it was said after the call began: each tries once at least.

    Args:
        patience: seconds from a broker's first refusal until it counts.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._words: dict[int, _Word] = {}

    def lost(self, node_id: int, error: KafkaError, now: float) -> None:
        """A connection or an attempt at one ended, not by our own wish."""
        refusal = error if isinstance(error, AuthenticationError) else None
        before = self._words.pop(node_id, None)
        if refusal is None and not isinstance(error, DialError):
            return  # it was there, and may be so again
        since = now
        if before is not None and (before.refusal is None) == (refusal is None):
            since = before.since
        self._words[node_id] = _Word(since, now, refusal)

    def connected(self, node_id: int) -> None:
        """A broker let us in."""
        self._words.pop(node_id, None)

    def of(
        self, node_id: int, began: float, now: float, *, last_word: bool
    ) -> AuthenticationError | None:
        """Why a broker refuses us, once that counts for a call that began at `began`; `last_word`
        makes it count now, as the call waits no longer."""
        word = self._words.get(node_id)
        if word is None or word.refusal is None:
            return None
        final = word.last >= began and now - word.since >= self._patience
        return word.refusal if final or last_word else None

    def of_all(
        self, nodes: Iterable[int], began: float, now: float, *, last_word: bool
    ) -> AuthenticationError | None:
        """Why we are outside of all `nodes`: each refuses us or cannot be reached, and at least one
        refuses. With `last_word` one that refuses is enough."""
        found = None
        for node_id in nodes:
            refusal = self.of(node_id, began, now, last_word=last_word)
            if refusal is None and not last_word:
                word = self._words.get(node_id)
                if word is None or word.refusal is not None or word.last < began:
                    return None
            found = refusal or found
        return found
