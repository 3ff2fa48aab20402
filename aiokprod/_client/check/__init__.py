"""`Producer.check`: finds problems that would prevent the delivery of records."""

from aiokprod._client.check.checker import check, log_findings

__all__ = ["check", "log_findings"]
