"""Keys and certificates of the control channel: functions over PEM bytes, pure except for the random numbers in keys.

An authority is renewed with an overlap, in three steps. First its successor is created and is in every bundle for a
day. Then the successor signs, and the old authority stays in the bundle until everything that it has signed has
expired. Then the old one is removed.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trainmaster_operator.control.session_tokens import KEY_BYTES

DAY_S = 86400.0
AUTHORITY_S = 730 * DAY_S
PREPARE_S = 90 * DAY_S  # Before an authority expires, its successor is created.
SETTLE_S = DAY_S  # After this time every pod has the successor in its bundle.
SERVER_S = 30 * DAY_S
RENEW_S = 10 * DAY_S  # Before the certificate of a server expires.
_BACKDATED_S = 3600.0  # Clocks differ.
_NAME_CHARACTERS = 64


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True)
class Secrets:
    """What the replicas of an operator share."""

    session_key: bytes = field(default=b"", repr=False)
    authority: Pair | None = None
    successor: Pair | None = None
    previous: bytes = b""  # A certificate.
    previous_until: float = 0.0

    @property
    def bundle(self) -> bytes:
        """The certificates of all authorities that agents must trust, as PEM."""
        pairs = [pair.certificate for pair in (self.authority, self.successor) if pair is not None]
        return b"".join([*pairs, self.previous])


def new_session_key() -> bytes:
    """Return a random key for signing sessions."""
    return secrets.token_bytes(KEY_BYTES)


def advance(known: Secrets, now: float) -> Secrets:
    """Return the secrets, renewed if the age of the authority requires it. `now`: seconds since 1970."""
    authority, successor = known.authority, known.successor
    if authority is None:
        return replace(known, authority=new_authority(now))
    if known.previous and now >= known.previous_until:
        known = replace(known, previous=b"", previous_until=0.0)
    expires_at = valid_until(authority.certificate)
    if successor is None:
        if now < expires_at - PREPARE_S:
            return known
        successor = new_authority(now)
    if now < min(made_at(successor.certificate) + SETTLE_S, expires_at):
        return replace(known, successor=successor)
    promoted = replace(known, authority=successor, successor=None, previous=b"", previous_until=0.0)
    if now >= expires_at:
        return promoted
    return replace(promoted, previous=authority.certificate, previous_until=float(int(now + SERVER_S) + 1))


def new_authority(now: float) -> Pair:
    """Return a new authority that is valid from `now` (seconds since 1970)."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = _name(f"trainmaster control channel {serial:x}")
    usage = {"key_cert_sign": True, "crl_sign": True}
    builder = (
        _certificate(name, serial, now, now + AUTHORITY_S, key, usage)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    return _pair(builder, key, key)


def issue(authority: Pair, hosts: Sequence[str], now: float) -> Pair:
    """Return a certificate for a server with these names and addresses, signed by the authority."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + SERVER_S, issuer.not_valid_after_utc.timestamp())
    issuer_key = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _certificate(_name(hosts[0]), x509.random_serial_number(), now, until, key, {"digital_signature": True})
        .issuer_name(issuer.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key), critical=False)
    )
    return _pair(builder, key, signer)


def valid_until(certificate: bytes) -> float:
    """Return the time at which a certificate expires, in seconds since 1970."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()


def made_at(certificate: bytes) -> float:
    """Return the time at which one of our certificates was created, in seconds since 1970."""
    return x509.load_pem_x509_certificate(certificate).not_valid_before_utc.timestamp() + _BACKDATED_S


def is_pair(pair: Pair) -> bool:
    """Return whether both are valid and belong together."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, None)
    except (ValueError, TypeError):
        return False
    return isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() == certificate.public_key()


def is_certificate(certificate: bytes) -> bool:
    """Return whether the bytes are a PEM certificate."""
    try:
        x509.load_pem_x509_certificate(certificate)
    except ValueError:
        return False
    return True


def is_from(certificate: bytes, bundle: bytes) -> bool:
    """Return whether one of the authorities in the bundle has signed the certificate."""
    for authority in x509.load_pem_x509_certificates(bundle):
        try:
            x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False


def _certificate(
    subject: x509.Name, serial: int, now: float, until: float, key: ec.EllipticCurvePrivateKey, usage: dict[str, bool]
) -> x509.CertificateBuilder:
    none = dict.fromkeys(
        (
            "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
            "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
        ),
        False,
    )  # fmt: skip
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .serial_number(serial)
        .public_key(key.public_key())
        .not_valid_before(_moment(now - _BACKDATED_S))
        .not_valid_after(_moment(until))
        .add_extension(x509.KeyUsage(**{**none, **usage}), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _pair(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey
) -> Pair:
    certificate = builder.sign(signer, hashes.SHA256())
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_NAME_CHARACTERS])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), timezone.utc)
