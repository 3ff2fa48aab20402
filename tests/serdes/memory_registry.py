"""A Schema Registry in memory, used as the `transport` of a `Registry` in virtual time."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any
from urllib.parse import unquote, urlsplit

from aiokprod.serdes import RegistryRequest, RegistryResponse

URL = "http://localhost:8081"


class MemoryRegistry:
    """A registry that stores the registered schemas.

    Attributes:
        requests: method and path of each request.
        delay: seconds until a response.
        refusals: (status, body) or exceptions for the next requests.
        is_down: if True, requests fail.
        gives_guid: if True, responses contain the GUID of the schema.
        bodies: bodies of all requests.
    """

    def __init__(self, *, delay: float = 0.01) -> None:
        self.requests: list[str] = []
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.delay = delay
        self.refusals: list[tuple[int, Any] | BaseException] = []
        self.is_down = False
        self.gives_guid = True
        self._ids: dict[str, int] = {}
        self._subjects: dict[str, list[str]] = {}

    async def __call__(self, request: RegistryRequest) -> RegistryResponse:
        parts = urlsplit(request.url)
        self.requests.append(f"{request.method} {parts.path}")
        self.headers.append(dict(request.headers))
        document = None if request.body is None else json.loads(request.body)
        self.bodies.append(document)
        await asyncio.sleep(self.delay)
        if self.is_down:
            raise ConnectionRefusedError(111, "canary of the network")
        if self.refusals:
            refusal = self.refusals.pop(0)
            if isinstance(refusal, BaseException):
                raise refusal
            status, answer = refusal
        else:
            status, answer = self.answer(request.method, parts.path, document)
        return RegistryResponse(status, json.dumps(answer).encode())

    def register(self, subject: str, schema: str, kind: str = "AVRO", references: Any = ()) -> int:
        """Add a schema and return its id."""
        text = json.dumps([schema, kind, list(references)])
        versions = self._subjects.setdefault(subject, [])
        if text not in versions:
            versions.append(text)
        return self._ids.setdefault(text, len(self._ids) + 1)

    def guid(self, number: int) -> uuid.UUID:
        """Return the GUID of the schema with this id."""
        return uuid.UUID(int=number << 64 | number)

    def answer(self, method: str, path: str, document: Any) -> tuple[int, Any]:
        """Return the status and the body of the response."""
        _, _, subject, *rest = map(unquote, path.split("/"))
        if method == "GET":
            return self._version(subject, int(rest[1]))
        text = (
            document["schema"], document.get("schemaType", "AVRO"), document.get("references", [])
        )  # fmt: skip
        if rest == ["versions"]:
            self.register(subject, *text)
        if subject not in self._subjects:
            return 404, {"error_code": 40401, "message": "canary of the server"}
        known = json.dumps(list(text))
        if known not in self._subjects[subject]:
            return 404, {"error_code": 40403, "message": "canary of the server"}
        return 200, self._described(subject, known)

    def _version(self, subject: str, version: int) -> tuple[int, Any]:
        known = self._subjects.get(subject, [])
        if not 1 <= version <= len(known):
            return 404, {"error_code": 40402, "message": "canary of the server"}
        schema, _, references = json.loads(known[version - 1])
        described = self._described(subject, known[version - 1])
        return 200, {**described, "schema": schema, "references": references}

    def _described(self, subject: str, text: str) -> dict[str, Any]:
        number = self._ids[text]
        found = {"id": number, "version": self._subjects[subject].index(text) + 1}
        return {**found, "guid": str(self.guid(number))} if self.gives_guid else found
