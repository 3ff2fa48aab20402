"""`Producer.check`: looks for problems that would prevent records from being delivered."""

from aiokprod._client.check.checker import check, log_findings

__all__ = ["check", "log_findings"]
