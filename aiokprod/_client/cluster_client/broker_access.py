"""`BrokerAccess`: tells whether all brokers reject the credentials, or only some of them.

Wrong credentials must be reported on the driver, before anything is sent. But a single broker that
rejects them (because it is still loading its users after a restart, or is configured differently)
must not fail a request to which any other broker can respond, such as FindCoordinator for a commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aiokprod.errors import AuthenticationError, DialError, KafkaError


class _Failure(NamedTuple):
    """The reason why a broker has no connection: an authentication error, or None if it is
    unreachable.

    `since` and `last` are the times of the first and of the latest such failure.
    """

    since: float
    last: float
    refusal: AuthenticationError | None


class BrokerAccess:
    """The latest connection failure of each broker. Times are `loop.time()`.

    A failure counts for a call only if it happened after the call began, so that every call makes
    at least one attempt.

    Args:
        patience: seconds from the first rejection by a broker until it fails calls.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._failures: dict[int, _Failure] = {}

    def lost(self, node_id: int, error: KafkaError, now: float) -> None:
        """A connection or a connection attempt ended, and this client did not close it."""
        refusal = error if isinstance(error, AuthenticationError) else None
        before = self._failures.pop(node_id, None)
        if refusal is None and not isinstance(error, DialError):
            return  # the broker was connected, and can be connected again
        since = now
        if before is not None and (before.refusal is None) == (refusal is None):
            since = before.since
        self._failures[node_id] = _Failure(since, now, refusal)

    def connected(self, node_id: int) -> None:
        """A broker accepted the credentials."""
        self._failures.pop(node_id, None)

    def of(
        self, node_id: int, began: float, now: float, *, last_word: bool
    ) -> AuthenticationError | None:
        """The error of a broker if a call that began at `began` fails because of it, else None.

        With `last_word` any rejection fails the call, because the call does not wait any longer.
        """
        failure = self._failures.get(node_id)
        if failure is None or failure.refusal is None:
            return None
        final = failure.last >= began and now - failure.since >= self._patience
        return failure.refusal if final or last_word else None

    def of_all(
        self, nodes: Iterable[int], began: float, now: float, *, last_word: bool
    ) -> AuthenticationError | None:
        """The error of a broker, if each of `nodes` rejects the credentials or is unreachable and
        at least one rejects them. With `last_word` one rejection is enough."""
        found = None
        for node_id in nodes:
            refusal = self.of(node_id, began, now, last_word=last_word)
            if refusal is None and not last_word:
                failure = self._failures.get(node_id)
                if failure is None or failure.refusal is not None or failure.last < began:
                    return None
            found = refusal or found
        return found
