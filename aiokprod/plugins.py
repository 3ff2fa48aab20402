"""Plug-ins, which pair a record with its outcome, for example for tracing or dead letters.

A plug-in returns a token for a record of interest. It gets the token back once, with the outcome,
in one call per batch. A record without a token costs no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from aiokprod.errors import KafkaError
from aiokprod.observer import BatchView
from aiokprod.records import Header


class RecordPlugin(Protocol):
    """Called for every record of a producer, and when records have their outcome.

    Methods are synchronous and must not block. Their exceptions and invalid results are logged and
    otherwise ignored. If `on_append` raises a BaseException that is not an Exception
    (KeyboardInterrupt), it propagates to the caller, and the record is not sent. If another method
    raises such an exception, it is passed to the loop's exception handler. Methods may send
    records. A plug-in may also have hooks of `Observer`, `configure(config)` and `close()`.
    """

    def on_append(
        self, topic: str, key: bytes | None, value: bytes | None, headers: tuple[Header, ...]
    ) -> tuple[Sequence[Header], object | None] | None:
        """Called once for each record, after its serializers and before its partition is chosen.

        Returns:
            The headers to send, and a token, or None if the outcome of the record is of no
            interest. None instead of the pair means unchanged headers and no token.
        """

    def on_batch_settled(
        self,
        batch: BatchView,
        tokens: Sequence[tuple[int, Any]],
        base_offset: int | None,
        error: KafkaError | None,
    ) -> None:
        """Records of a batch have their outcome.

        Called once for each batch that has tokens of this plug-in, and separately for each record
        that the broker has rejected with a separate error. The parts of a split batch count as
        batches.

        Args:
            tokens: (index of the record in the batch, token), by index.
            base_offset: base offset of the batch; the offset of a record is base_offset + index.
                None if the records failed or the broker did not return it.
            error: None if the records were acknowledged. `error.outcome` says whether they can be
                in the log.
        """

    def on_record_unsent(
        self, topic: str, partition: int | None, token: object | None, error: KafkaError
    ) -> None:
        """A record was refused before it was in a batch (no metadata, no memory, too large, not
        serialized, or the call was cancelled), or was withdrawn from its batch.

        Args:
            partition: None if no partition was chosen.
            token: None if the record failed before `on_append`. This method is not called for
                records for which `on_append` has returned no token.
        """


METHODS: Final = ("on_append", "on_batch_settled", "on_record_unsent")
"""The methods of a `RecordPlugin`."""
