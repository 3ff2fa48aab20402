"""`Finding`: a problem that `Producer.check` found, and its remedy."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.Enum):
    """The severity of a finding.

    ERROR: records cannot be delivered to some or all partitions. WARNING: records can be delivered,
    but some may fail, or the configuration is risky. INFO: useful information.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of `Producer.check`.

    Attributes:
        code: identifies the kind of finding; a stable name, such as "topic_missing".
            docs/check.md lists them.
        severity: see `Severity`.
        subject: the server, broker or topic concerned: "b:9092", "broker b:9092 (id 1)", "topic
            orders".
        text: a description of the problem.
        remedy: what to do about it.

    None of the texts contains credentials.
    """

    code: str
    severity: Severity
    subject: str
    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity.value}: {self.subject}: {self.text}. {self.remedy}"
