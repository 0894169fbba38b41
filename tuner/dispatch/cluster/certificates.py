"""The certificates of a small cluster: one authority, and a folder for each member to copy to its machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tuner.dispatch.cluster.security import CA_FILE, CERT_FILE, KEY_FILE
from tuner.errors import Conflict, InvalidInput

#: The authority's folder, which stays on the machine where it was created.
AUTHORITY = "authority"


def create(folder: Path, members: Sequence[str], days: int) -> list[Path]:
    """Creates a folder under `folder` for each of `members`, with a certificate signed by the authority in `folder`,
    which is created if there is none yet.

    Raises:
        InvalidInput: a member's name is not a valid folder name.
        Conflict: a member already has a folder, or the existing authority cannot be used.
    """
    for member in members:
        if member == AUTHORITY or not member.replace("-", "").replace("_", "").isalnum():
            raise InvalidInput("member", f"{member!r} cannot be the name of a folder", "use letters, digits, - and _")
        if (folder / member).exists():
            raise Conflict(f"{folder / member} already exists; remove it, or choose another name")
    authority = folder / AUTHORITY
    if not authority.exists():
        _create_authority(authority, days)
    certificate, key = _read_authority(authority)
    for member in members:
        _create_member(folder / member, member, certificate, key, days)
    return [folder / member for member in members]


def _read_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    remedy = "restore the authority's own, or use an empty folder"
    path = folder / CA_FILE
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        path = folder / KEY_FILE
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise Conflict(f"{path} cannot be read: {error.strerror}; {remedy}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Conflict(f"{path} is not as `tuner tls create` wrote it; {remedy}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise Conflict(f"{path} is not the key that belongs to {CA_FILE}; {remedy}")
    return certificate, key


def _create_authority(folder: Path, days: int) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("tuner cluster")
    builder = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    _write(folder, CA_FILE, builder.sign(key, hashes.SHA256()), key)


def _create_member(
    folder: Path, member: str, authority: x509.Certificate, authority_key: ec.EllipticCurvePrivateKey, days: int
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = (
        _builder(_name(member), authority.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(both, critical=False)
        .add_extension(identifier, critical=False)
    )
    _write(folder, CERT_FILE, builder.sign(authority_key, hashes.SHA256()), key)
    _write_file(folder / CA_FILE, authority.public_bytes(serialization.Encoding.PEM), 0o644)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # machines' clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    folder.mkdir(parents=True, mode=0o700)
    _write_file(folder / name, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write_file(folder / KEY_FILE, private, 0o600)


def _write_file(path: Path, content: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
