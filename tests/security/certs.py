"""A certificate authority for tests. Keys are generated once per run, because only they are
expensive."""

from __future__ import annotations

import datetime
import functools
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@functools.cache
def private_key(number: int) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def key_pem(number: int, password: str | None = None) -> str:
    how: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        how = serialization.BestAvailableEncryption(password.encode())
    form = serialization.PrivateFormat.PKCS8
    return private_key(number).private_bytes(serialization.Encoding.PEM, form, how).decode()


@dataclass
class Issued:
    """A certificate with its chain, and its key, as PEM text."""

    chain: str
    number: int

    def key(self, password: str | None = None) -> str:
        return key_pem(self.number, password)

    def write(self, folder: Path, stem: str) -> Path:
        """Write the certificates and the key to one file, and return its path."""
        path = folder / f"{stem}.pem"
        path.write_text(self.chain + self.key())
        return path


class Authority:
    def __init__(
        self,
        common: str = "test CA",
        number: int = 0,
        issuer: Authority | None = None,
        end: datetime.datetime = NOW + 365 * DAY,
    ):
        self.common, self.number = common, number
        signer = issuer or self
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(name(common))
            .issuer_name(name(signer.common))
            .public_key(private_key(number).public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(NOW, end) - DAY)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(private_key(signer.number), hashes.SHA256())
        )

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def revocation_list(self, *revoked: Issued) -> str:
        """Return a certificate revocation list with these certificates, as PEM text."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(name(self.common))
            .last_update(NOW - DAY)
            .next_update(NOW + 30 * DAY)
        )
        for one in revoked:
            serial = x509.load_pem_x509_certificate(one.chain.encode()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(NOW)
            builder = builder.add_revoked_certificate(entry.build())
        made = builder.sign(private_key(self.number), hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM).decode()

    def issue(
        self,
        *names: str,
        number: int = 50,
        common: str = "broker",
        start: datetime.datetime = NOW - DAY,
        end: datetime.datetime = NOW + 30 * DAY,
        client: bool = False,
        chain: Sequence[Authority] = (),
    ) -> Issued:
        """Issue a certificate for DNS names and IP addresses. Without names it has only a common
        name."""
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        builder = (
            x509.CertificateBuilder()
            .subject_name(name(common))
            .issuer_name(name(self.common))
            .public_key(private_key(number).public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        )
        if names:
            found = x509.SubjectAlternativeName([general_name(text) for text in names])
            builder = builder.add_extension(found, critical=False)
        made = builder.sign(private_key(self.number), hashes.SHA256())
        pem = made.public_bytes(serialization.Encoding.PEM).decode()
        return Issued(pem + "".join(authority.pem for authority in chain), number)


def general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
