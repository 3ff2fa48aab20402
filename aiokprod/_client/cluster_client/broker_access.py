"""`BrokerAccess`: determines whether all brokers or only some of them reject the credentials.

Wrong credentials must be reported on the Spark driver, before any record is sent. However, a single
broker that rejects them (because it is still loading its users after a restart, or is configured
differently) must not fail a request to which another broker can respond, such as FindCoordinator
for a commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aiokprod.errors import AuthenticationError, DialError, KafkaError


class _Failure(NamedTuple):
    """The consecutive connection failures of a broker, all of the same kind.

    Attributes:
        since: time of the first failure.
        last: time of the latest failure.
        refusal: the latest authentication error, or None if the broker is unreachable.
    """

    since: float
    last: float
    refusal: AuthenticationError | None


class BrokerAccess:
    """The connection failures of each broker. Times are `loop.time()`.

    A failure affects a call only if it happened after the start of the call, so that every call
    makes at least one attempt.

    Args:
        patience: seconds after a broker's first rejection until its rejections fail calls.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._failures: dict[int, _Failure] = {}

    def lost(self, node_id: int, error: KafkaError, now: float) -> None:
        """Record the error of a connection or attempt that this client did not close."""
        refusal = error if isinstance(error, AuthenticationError) else None
        before = self._failures.pop(node_id, None)
        if refusal is None and not isinstance(error, DialError):
            return  # the broker is reachable and has not rejected the credentials
        since = now
        if before is not None and (before.refusal is None) == (refusal is None):
            since = before.since
        self._failures[node_id] = _Failure(since, now, refusal)

    def connected(self, node_id: int) -> None:
        """Forget the failures of a broker, because it accepted the credentials."""
        self._failures.pop(node_id, None)

    def of(
        self, node_id: int, began: float, now: float, *, last_word: bool
    ) -> AuthenticationError | None:
        """Return the error of a broker if it fails a call that began at `began`, otherwise None.

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
        """Return the error of a broker if each of `nodes` rejects the credentials or is
        unreachable, and at least one of them rejects the credentials. Otherwise return None. With
        `last_word` one rejection is enough."""
        found = None
        for node_id in nodes:
            refusal = self.of(node_id, began, now, last_word=last_word)
            if refusal is None and not last_word:
                failure = self._failures.get(node_id)
                if failure is None or failure.refusal is not None or failure.last < began:
                    return None
            found = refusal or found
        return found
