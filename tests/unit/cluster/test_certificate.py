from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

from cryptography import x509

from dualpath.cluster.certificate import make_certificate
from dualpath.cluster.home import Home
from dualpath.settings import Settings
from dualpath.transport.tls import Tls


def test_a_certificate_has_the_names_that_peers_dial_and_its_key_is_the_owners(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path)
    home.create()
    settings = make_certificate(home, Settings(host="::1", announce="node.example"))
    assert settings.tls_certificate is not None
    assert Tls.of(settings) is not None
    certificate = x509.load_pem_x509_certificate(settings.tls_certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"localhost", "node.example"}
    assert set(names.get_values_for_type(x509.IPAddress)) == {
        ip_address("127.0.0.1"),
        ip_address("::1"),
    }
    assert home.key_file.stat().st_mode & 0o777 == 0o600


def test_each_start_makes_another_key(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()
    made = set()
    for _ in range(2):
        make_certificate(home, Settings())
        made.add(home.key_file.read_bytes())
    assert len(made) == 2
