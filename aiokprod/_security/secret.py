"""Secrets that are masked in all output, and credentials that can be replaced while in use."""

from __future__ import annotations

import asyncio
import hmac
import os
from typing import Final, NoReturn, Self

from aiokprod._redaction import redacted
from aiokprod.errors import AuthenticationError, ConfigError

MASK: Final = "***"

_TEXT, _FILE, _ENVIRONMENT, _LOST = "text", "file", "environment", "lost"


class Secret:
    """A password, token or key whose repr, str, format and pickled forms are masked.

    `Secret("text")` contains the text. `Secret.from_file` and `Secret.from_env` contain only the
    location of the text and read it at each use, so that a rotated secret takes effect with the
    next connection. Only the location is pickled, never the text: a copy of `Secret("text")` raises
    ConfigError when it is used.

    Raises:
        ConfigError: the text is not a str or is empty.
    """

    __slots__ = ("_kind", "_source")

    @redacted(ConfigError)
    def __init__(self, text: str) -> None:
        if not _is_text(text):
            raise ConfigError("a Secret takes a str that is not empty")
        self._kind = _TEXT
        self._source = text

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Return a secret in a UTF-8 file. A line break at the end of the file is ignored."""
        return cls._of(_FILE, os.fspath(path))

    @classmethod
    def from_env(cls, name: str) -> Self:
        """Return a secret in an environment variable."""
        return cls._of(_ENVIRONMENT, name)

    @classmethod
    def _of(cls, kind: str, source: str) -> Self:
        secret = cls.__new__(cls)
        secret._kind = kind
        secret._source = source
        return secret

    @property
    def blocks(self) -> bool:
        """True if `reveal` reads a file, which must not be done on the event loop."""
        return self._kind == _FILE

    @redacted(ConfigError)
    def reveal(self) -> str:
        """Return the text of the secret.

        Raises:
            ConfigError: the file or the variable does not exist or is empty, or the text was lost
                by pickling.
        """
        if self._kind == _TEXT:
            return self._source
        if self._kind == _FILE:
            text = self._read()
        elif self._kind == _ENVIRONMENT:
            text = os.environ.get(self._source, "")
        else:
            raise ConfigError(
                "this secret was pickled, and the text of a secret is never pickled: use "
                "Secret.from_file or Secret.from_env, or set it again where it is needed"
            )
        if not text:
            raise ConfigError(f"{self!r} is empty or does not exist")
        return text

    def _read(self) -> str:
        try:
            with open(self._source, encoding="utf-8") as file:
                return file.read().removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"{self!r} cannot be read: {reason}") from None

    def __repr__(self) -> str:
        if self._kind == _FILE:
            return f"Secret.from_file({self._source!r})"
        if self._kind == _ENVIRONMENT:
            return f"Secret.from_env({self._source!r})"
        return f"Secret({MASK})"

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        ours, theirs = (secret._source.encode("utf-8", "surrogatepass") for secret in (self, other))
        return hmac.compare_digest(ours, theirs) and self._kind == other._kind

    def __hash__(self) -> int:
        # All secrets have the same hash, because a hash of the text would reveal information.
        return hash(Secret)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        if self._kind in (_FILE, _ENVIRONMENT):
            return _restore, (self._kind, self._source)
        return _restore, (_LOST, MASK)

    def __iter__(self) -> NoReturn:
        raise TypeError("a Secret is not iterable")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _restore(kind: str, source: str) -> Secret:
    return Secret._of(kind, source)


def as_secret(value: str | Secret) -> Secret:
    """Return the value as a `Secret`."""
    return value if isinstance(value, Secret) else Secret(value)


class Credentials:
    """User name and password that may be replaced while a producer runs.

    New connections and re-authentications use the new values; open connections are not closed. Both
    values are replaced together, from any thread.

    Raises:
        ConfigError: the user name is not a str or is empty.
    """

    __slots__ = ("_pair",)

    @redacted(ConfigError)
    def __init__(self, username: str, password: str | Secret) -> None:
        self._pair = _checked_pair(username, password)

    @redacted(ConfigError)
    def replace(self, username: str, password: str | Secret) -> None:
        """Replace user name and password."""
        self._pair = _checked_pair(username, password)

    @property
    def pair(self) -> tuple[str, Secret]:
        """The current user name and password."""
        return self._pair

    def __repr__(self) -> str:
        return f"Credentials({self._pair[0]!r}, {MASK})"


def _checked_pair(username: str, password: str | Secret) -> tuple[str, Secret]:
    if not _is_text(username):
        raise ConfigError("the user name must be a str that is not empty")
    return username, as_secret(password)


async def revealed(secret: Secret) -> str:
    """Return the text of a secret. A file is read in a thread.

    Raises:
        AuthenticationError: the text cannot be read.
    """
    try:
        if secret.blocks:
            # The text is wrapped in a `Secret`, because asyncio in debug mode logs the results of
            # futures.
            loop = asyncio.get_running_loop()
            secret = await loop.run_in_executor(None, lambda: Secret(secret.reveal()))
        return secret.reveal()
    except ConfigError as error:
        raise AuthenticationError(error.message) from None
