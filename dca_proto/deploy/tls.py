"""A private certificate authority (CA) for TLS, by the library `cryptography` (extra ``deploy``).

The library raises typed errors, and no key passes through a shell or depends on the options of an installed openssl.
Only the owner's machine needs it. Actors verify certificates by Python's `ssl`, and mosquitto by its OpenSSL.
Keys are on the curve P-256, which all TLS libraries have.
"""

from __future__ import annotations

import datetime
import ipaddress
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_EARLIER = datetime.timedelta(hours=1)  # for clocks that are behind


class Pair(NamedTuple):
    """A certificate and its private key, both as PEM."""

    certificate: str
    key: str

    def __repr__(self) -> str:
        return "Pair(<certificate>, key=<hidden>)"


def new_ca(name: str, now: datetime.datetime, days: int) -> Pair:
    """Return a new CA, which certifies servers only. `name` is for people."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    built = (
        _builder(subject, subject, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(_own_identifier(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(built, key)


def new_server(ca: Pair, names: tuple[str, ...], now: datetime.datetime, days: int) -> Pair:
    """Return a server's certificate and key. `names`: its host names and IP addresses."""
    signer = x509.load_pem_x509_certificate(ca.certificate.encode())
    signing_key = serialization.load_pem_private_key(ca.key.encode(), None)
    assert isinstance(signing_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    built = (
        _builder(subject, signer.subject, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(_own_identifier(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
        .sign(signing_key, hashes.SHA256())
    )
    return _pair(built, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _EARLIER,
        not_valid_after=now + datetime.timedelta(days=days),
    )


def _usage(**purposes: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: purposes.get(name, False) for name in names})


def _own_identifier(key: ec.EllipticCurvePublicKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    return Pair(certificate.public_bytes(encoding).decode(), secret.decode())
