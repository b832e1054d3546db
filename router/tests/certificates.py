"""Certificates for tests, signed by authorities that exist only there."""

import datetime as dt
import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PEM = serialization.Encoding.PEM
DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Issued:
    certificate: Path
    key: Path

    def server(self, clients: "Authority | None" = None) -> ssl.SSLContext:
        """Create a server's certificate. `clients` is the authority that signs certificates of clients; None if clients
        need none.
        """
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(self.certificate, self.key)
        if clients is not None:
            made.load_verify_locations(clients.path)
            made.verify_mode = ssl.CERT_REQUIRED
        return made


class Authority:
    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder, self._name = folder, x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.path = folder / f"{name}.pem"
        made = self._signed(self._name, self._key.public_key(), dt.datetime.now(dt.UTC) + DAY)
        self.path.write_bytes(made.public_bytes(PEM))

    def issue(self, *hosts: str, expired: bool = False) -> Issued:
        """Issue a certificate for these names and addresses; without any, for a client."""
        key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
        ends = dt.datetime.now(dt.UTC) + (-DAY if expired else DAY)
        made = self._signed(name, key.public_key(), ends, hosts)
        stem = f"{self.path.stem}-{len(list(self._folder.iterdir()))}"
        issued = Issued(self._folder / f"{stem}.pem", self._folder / f"{stem}-key.pem")
        issued.certificate.write_bytes(made.public_bytes(PEM))
        plain = serialization.NoEncryption()
        issued.key.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, plain))
        return issued

    def _signed(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, ends: dt.datetime, hosts: tuple[str, ...] | None = None
    ) -> x509.Certificate:
        made = x509.CertificateBuilder().subject_name(name).issuer_name(self._name).public_key(key)
        made = made.serial_number(x509.random_serial_number()).not_valid_before(ends - 9 * DAY).not_valid_after(ends)
        made = made.add_extension(x509.BasicConstraints(ca=hosts is None, path_length=None), critical=True)
        if hosts:
            made = made.add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=True)
        return made.sign(self._key, hashes.SHA256())


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
