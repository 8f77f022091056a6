"""Authorities and certificates for tests of encrypted links."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from dualpath.transport.tls import Tls


class Authority:
    """Signs certificates; its files are in `directory`."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = directory / f"{name}.crt"
        certificate = _build(name, name, self._key.public_key(), timedelta(days=1)).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.file.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))

    def issue(
        self, name: str, *, host: str = "127.0.0.1", valid_for: timedelta = timedelta(days=1)
    ) -> tuple[Path, Path]:
        """Files of a certificate for `host`, an address, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))])
        certificate = _build(name, self._name, key.public_key(), valid_for).add_extension(
            names, critical=False
        )
        paths = self._directory / f"{name}.crt", self._directory / f"{name}.key"
        paths[0].write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))
        paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return paths

    def tls(
        self,
        name: str,
        *,
        host: str = "127.0.0.1",
        valid_for: timedelta = timedelta(days=1),
        trusts: Authority | None = None,
    ) -> Tls:
        """For an endpoint with a new certificate, which accepts those of `trusts` (default: the same)."""
        certificate, key = self.issue(name, host=host, valid_for=valid_for)
        return Tls(certificate, key, (trusts or self).file)


def _build(
    name: str, issuer: str, key: ec.EllipticCurvePublicKey, valid_for: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]),
        subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - timedelta(days=2),
        not_valid_after=now + valid_for,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)
