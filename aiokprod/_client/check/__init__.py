"""`Producer.check`: looks for what would keep records from being delivered."""

from aiokprod._client.check.checker import check, log_findings

__all__ = ["check", "log_findings"]
