"""A certificate for the links of a local cluster, made anew at each start."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dualpath.cluster.home import Home, write_private
from dualpath.settings import Settings

_LIFE = timedelta(days=3650)


def make_certificate(home: Home, settings: Settings) -> Settings:
    """`settings` with a certificate under `home` for the names of this machine that they know.

    It is its own authority: all processes of the cluster show it and accept no other.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "DualPath local cluster")])
    now = datetime.now(UTC)
    hosts = dict.fromkeys(("127.0.0.1", "localhost", settings.host, settings.announced_host))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            False,
        )
        .sign(key, hashes.SHA256())
    )
    encoded_key = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_private(home.key_file, encoded_key)
    write_private(home.certificate_file, certificate.public_bytes(Encoding.PEM))
    return settings.model_copy(
        update={
            "tls_certificate": home.certificate_file,
            "tls_key": home.key_file,
            "tls_ca": home.certificate_file,
        }
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
