"""Builds TLS contexts from the configuration and explains TLS failures."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NoReturn

from aiokprod._log_fields import log_fields
from aiokprod._redaction import redacted
from aiokprod.errors import AuthenticationError, ConfigError

if TYPE_CHECKING:
    from aiokprod.config import ProducerConfig

log = logging.getLogger(__name__)

_Signature = tuple[tuple[int, int, int, int], ...]

_REASONS: Final = (
    ("CERTIFICATE_VERIFY_FAILED", "the broker's certificate was refused"),
    ("WRONG_VERSION_NUMBER", "the port does not use TLS: a plaintext listener?"),
    ("HTTP_REQUEST", "the port does not use TLS: it is an HTTP server"),
    ("CERTIFICATE_REQUIRED", "the broker requires a client certificate: set ssl_keystore_location"),
    ("ALERT_UNKNOWN_CA", "the broker does not know the CA of our client certificate"),
    ("ALERT_CERTIFICATE_EXPIRED", "our client certificate has expired"),
    ("ALERT_CERTIFICATE_REVOKED", "our client certificate was revoked"),
    ("BAD_CERTIFICATE", "the broker rejected the client certificate, or requires one"),
    ("ALERT_CERTIFICATE_UNKNOWN", "the broker refused our client certificate"),
    ("UNSUPPORTED_PROTOCOL", "the broker offers no TLS 1.2 or newer"),
    ("ALERT_PROTOCOL_VERSION", "the broker offers no TLS 1.2 or newer"),
    ("HANDSHAKE_FAILURE", "no common cipher, or the broker requires a client certificate"),
    ("UNRECOGNIZED_NAME", "the broker does not recognise the requested server name"),
)


class TlsContexts:
    """Provides the TLS context of each new connection.

    Host names are checked against the certificate's alternative names only. The minimum version is
    TLS 1.2. A configured `ssl_context` is used unchanged. If one of the certificate or key files
    has changed since the last connection, a new context is built. If that fails, the connection
    fails.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self._context: ssl.SSLContext | None = None
        self._signature: _Signature | None = None
        files = (
            config.ssl_truststore_location,
            config.ssl_crl_location,
            config.ssl_keystore_location,
            config.ssl_key_location,
        )
        self._files = [file for file in files if file is not None]
        if config.ssl_endpoint_identification_algorithm == "":
            log.warning(
                "ssl_endpoint_identification_algorithm is empty: a certificate of any name is "
                "accepted from every broker",
                extra=log_fields(
                    "insecure_setting", setting="ssl_endpoint_identification_algorithm"
                ),
            )
        given = config.ssl_context
        if given is not None and given.verify_mode is not ssl.CERT_REQUIRED:
            log.warning(
                "ssl_context does not verify certificates: anyone can be the broker",
                extra=log_fields("insecure_setting", setting="ssl_context"),
            )
        elif given is not None and not given.check_hostname:
            log.warning(
                "ssl_context does not check host names: any certificate is accepted",
                extra=log_fields("insecure_setting", setting="ssl_context"),
            )

    async def get(self) -> ssl.SSLContext:
        """Return the context. Files are checked and read in a worker thread.

        Raises:
            AuthenticationError: a file cannot be read or used; the message says which.
        """
        if self._config.ssl_context is not None:
            return self._config.ssl_context
        if self._context is not None and not self._files:
            return self._context
        return await asyncio.get_running_loop().run_in_executor(None, self._current)

    @redacted(AuthenticationError)
    def _current(self) -> ssl.SSLContext:
        signature = self._sign()
        if self._context is None or signature != self._signature:
            # There is no lock, because it would be held during file access. Two connections may
            # build a context at the same time, which is harmless.
            self._context, self._signature = self._build(), signature
        return self._context

    def _sign(self) -> _Signature:
        found = []
        for file in self._files:
            try:
                status = os.stat(file)
            except OSError as error:
                raise AuthenticationError(f"TLS: cannot read {file!r}: {error.strerror}") from None
            found.append((status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev))
        return tuple(found)

    def _build(self) -> ssl.SSLContext:
        config = self._config
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.hostname_checks_common_name = False
        context.check_hostname = config.ssl_endpoint_identification_algorithm == "https"
        if config.ssl_truststore_location or config.ssl_truststore_certificates:
            with _explained("the trusted certificates (ssl_truststore_...)"):
                context.load_verify_locations(
                    cafile=config.ssl_truststore_location,
                    cadata=config.ssl_truststore_certificates,
                )
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if config.ssl_crl_location:
            with _explained("the revocation lists (ssl_crl_location)"):
                context.load_verify_locations(cafile=config.ssl_crl_location)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        self._load_client_certificate(context)
        return context

    def _load_client_certificate(self, context: ssl.SSLContext) -> None:
        config = self._config
        chain, key = config.ssl_keystore_certificate_chain, config.ssl_keystore_key
        if chain is None and config.ssl_keystore_location is None:
            return
        try:
            key_text = None if key is None else key.reveal()
            password = None if config.ssl_key_password is None else config.ssl_key_password.reveal()
        except ConfigError as error:
            raise AuthenticationError(f"TLS: {error.message}") from None
        with (
            _readable(chain) as chain_file,
            _readable(key_text) as key_file,
            _explained("the client certificate and its key (ssl_keystore_..., ssl_key_...)"),
        ):
            context.load_cert_chain(
                chain_file or config.ssl_keystore_location or "",
                key_file or config.ssl_key_location,
                # Without a password, pass a function that raises. OpenSSL would otherwise prompt
                # for the password at the terminal.
                _no_password if password is None else password,
            )


class _PasswordMissing(Exception):
    pass


def _no_password() -> NoReturn:
    raise _PasswordMissing


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except _PasswordMissing:
        text = "TLS: the private key is encrypted: set ssl_key_password"
        raise AuthenticationError(text) from None
    except ssl.SSLError as error:
        reason = (error.reason or "").replace("_", " ").lower()
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = "the key does not belong to the certificate"
        elif not reason or reason == "pem lib":
            reason = "not valid PEM, or ssl_key_password is wrong"
        raise AuthenticationError(f"TLS: cannot use {what}: {reason}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise AuthenticationError(f"TLS: cannot use {what}: {reason}") from None


@contextlib.contextmanager
def _readable(text: str | None) -> Iterator[str | None]:
    """Yield the path of a temporary file with `text`, because OpenSSL reads this data only from
    files. The file is in memory if the system supports that; otherwise only the current user can
    read it. It is deleted at the end."""
    if text is None:
        yield None
    elif hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        number = os.memfd_create("aiokprod", os.MFD_CLOEXEC)
        try:
            os.write(number, text.encode())
            yield f"/proc/self/fd/{number}"
        finally:
            os.close(number)
    else:
        import tempfile  # rarely needed, and slow to import

        with tempfile.TemporaryDirectory(prefix="aiokprod-") as folder:
            path = os.path.join(folder, "pem")
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
            yield path


def tls_failure(error: BaseException, host: str) -> AuthenticationError | None:
    """Return an error with the reason of a TLS failure, or None if `error` is another failure.

    Args:
        host: the name for which the certificate was checked.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message or "unknown reason"
        return AuthenticationError(
            f"TLS: the certificate of {host!r} was refused: {why.rstrip('.')}"
        )
    if isinstance(error, ssl.SSLEOFError) or not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or ""
    for mark, text in _REASONS:
        if mark in reason:
            return AuthenticationError(f"TLS with {host!r}: {text}")
    words = reason.replace("_", " ").lower() or type(error).__name__
    return AuthenticationError(f"TLS with {host!r} failed: {words}")
