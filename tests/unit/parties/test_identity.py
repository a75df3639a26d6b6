"""A party's key: its file, its signatures, and links that accept exactly one peer."""

import datetime
import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from securevfl.errors import ConfigError, DataError, PeerNotTrusted
from securevfl.parties import identity
from securevfl.parties.identity import (
    Encrypted,
    Identity,
    parse_public,
    public_text,
    verify,
    words_of,
)

SECRET = b"correct horse"


@pytest.fixture
def bank() -> Identity:
    return Identity.generate()


@pytest.fixture
def shop() -> Identity:
    return Identity.generate()


def connect(client: Encrypted, server: Encrypted) -> None:
    """Both handshakes, and one byte each way: TLS 1.3 refuses a client only after its own."""
    over, to_server, to_client = [False, False], b"", b""
    while not all(over):
        if not over[0]:
            to_server, over[0] = client.shake_hands(to_client)
        if not over[1]:
            to_client, over[1] = server.shake_hands(to_server)
    client.incoming(to_client)
    assert server.incoming(client.outgoing(b"hello")) == b"hello"
    assert client.incoming(server.outgoing(b"yes")) == b"yes"


def bare(*, server: bool) -> Encrypted:
    """An end without a certificate that trusts anybody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return Encrypted(context, server=server)


def test_a_key_file_gives_the_same_identity(bank: Identity, tmp_path: Path) -> None:
    for name, secret in (("open", None), ("locked", SECRET)):
        bank.save(tmp_path / name, secret)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        assert Identity.load(tmp_path / name, secret).public == bank.public
    assert b"ENCRYPTED" in (tmp_path / "locked").read_bytes()


def test_a_key_file_is_never_overwritten(bank: Identity, shop: Identity, tmp_path: Path) -> None:
    path = tmp_path / "key"
    bank.save(path)
    with pytest.raises(ConfigError, match=r"key exists: an identity is never overwritten"):
        shop.save(path)
    assert Identity.load(path).public == bank.public
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        bank.save(tmp_path / "nowhere" / "key")
    for unusable in (b"", bytes(1024)):
        with pytest.raises(ConfigError, match="1 to 1023 bytes"):
            bank.save(tmp_path / "other", unusable)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_file_that_others_can_read_is_refused(
    bank: Identity, tmp_path: Path, mode: int
) -> None:
    path = tmp_path / "key"
    bank.save(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"other users may read or write it .mode 0{mode:o}"):
        Identity.load(path)


def test_a_key_file_needs_its_passphrase(bank: Identity, tmp_path: Path) -> None:
    bank.save(tmp_path / "open")
    bank.save(tmp_path / "locked", SECRET)
    with pytest.raises(ConfigError, match="locked needs a passphrase"):
        Identity.load(tmp_path / "locked")
    with pytest.raises(ConfigError, match="passphrase is wrong"):
        Identity.load(tmp_path / "locked", b"battery staple")
    with pytest.raises(ConfigError, match="has no passphrase, but one is given"):
        Identity.load(tmp_path / "open", SECRET)


def test_a_file_without_a_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(DataError, match="cannot be read: No such file"):
        Identity.load(path)
    path.touch(0o600)
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match="is damaged: no PKCS8 key"):
        Identity.load(path)
    other = generate_private_key(SECP256R1())
    path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(DataError, match="not an Ed25519 key"):
        Identity.load(path)


def test_a_signature_holds_for_one_key_context_and_text(bank: Identity, shop: Identity) -> None:
    made = bank.sign("agreement", b"text")
    verify(bank.public, "agreement", b"text", made, "bank")
    for public, context, data, signature in (
        (shop.public, "agreement", b"text", made),
        (bank.public, "relay", b"text", made),
        (bank.public, "agreement", b"text!", made),
        (bank.public, "agreement", b"text", bytes(64)),
        (bank.public, "agreement", b"text", b""),
        (b"short", "agreement", b"text", made),
    ):
        with pytest.raises(PeerNotTrusted, match="bank: no valid signature"):
            verify(public, context, data, signature, "bank")


def test_a_public_key_has_one_spelling(bank: Identity) -> None:
    text = public_text(bank.public)
    assert len(text) == 43
    assert parse_public(text) == bank.public
    # The last character holds four bits of the key and two of nothing.
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    again = text[:-1] + alphabet[alphabet.index(text[-1]) + 1]
    for other in (
        again,
        text + "=",
        text[:-1],
        text[:-1] + "\n",
        "",
        "é" * 43,
        f" {text}",
        "+" * 43,
    ):
        with pytest.raises(ConfigError, match="expected the 43 characters"):
            parse_public(other)


def test_words_are_six_of_the_list_and_follow_from_the_bytes() -> None:
    # Digits in base 7776 of SHA-256(b""), the least first, as a number of 256 bits.
    assert words_of(b"") == "crop maggot prison traction giggling chaplain"
    assert words_of(b"a") != words_of(b"b")


def test_another_list_of_words_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "WORDS_OF_LIST", 7775)
    identity._words.cache_clear()
    with pytest.raises(DataError, match="7776 words, expected 7775"):
        words_of(b"")


def test_two_parties_that_expect_one_another_connect(bank: Identity, shop: Identity) -> None:
    for _ in range(2):  # with fresh keys each time
        connect(bank.tls(shop.public, server=False), shop.tls(bank.public, server=True))


def test_any_other_identity_is_refused(bank: Identity, shop: Identity) -> None:
    telco = Identity.generate()  # a party of the same agreement; each end expects another
    for client, server in (
        (telco.tls(shop.public, server=False), shop.tls(bank.public, server=True)),
        (bank.tls(shop.public, server=False), telco.tls(bank.public, server=True)),
        (bank.tls(telco.public, server=False), shop.tls(bank.public, server=True)),
        (bare(server=False), shop.tls(bank.public, server=True)),
    ):
        with pytest.raises(PeerNotTrusted, match="TLS"):
            connect(client, server)


def test_a_key_that_the_identity_did_not_certify_is_refused(
    bank: Identity, shop: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    telco = Identity.generate()
    telco.public = bank.public  # names bank as the issuer, and signs itself
    with pytest.raises(PeerNotTrusted, match="CERTIFICATE_VERIFY_FAILED"):
        connect(telco.tls(shop.public, server=False), shop.tls(bank.public, server=True))


def test_an_expired_certificate_is_refused(
    bank: Identity, shop: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = shop.tls(bank.public, server=True)
    monkeypatch.setattr(identity, "LAST_DAY", datetime.datetime(1999, 1, 1))
    with pytest.raises(PeerNotTrusted, match="CERTIFICATE_VERIFY_FAILED"):
        connect(bank.tls(shop.public, server=False), server)


def test_an_older_protocol_is_refused(bank: Identity, shop: Identity) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(PeerNotTrusted, match="UNSUPPORTED_PROTOCOL"):
        connect(Encrypted(context, server=False), shop.tls(bank.public, server=True))


def test_bytes_changed_on_the_way_are_refused(bank: Identity, shop: Identity) -> None:
    client, server = bank.tls(shop.public, server=False), shop.tls(bank.public, server=True)
    connect(client, server)
    sealed = bytearray(client.outgoing(b"12 coins"))
    assert b"coins" not in sealed
    sealed[-1] ^= 1
    with pytest.raises(PeerNotTrusted, match="TLS"):
        server.incoming(bytes(sealed))


def test_the_key_of_a_connection_is_never_on_disk_in_the_clear(
    bank: Identity, shop: Identity, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept: list[tuple[int, bytes]] = []
    write: Callable[[Path, bytes], int] = Path.write_bytes

    def keep(path: Path, data: bytes) -> int:
        done = write(path, data)
        kept.append((os.stat(path).st_mode & 0o777, path.read_bytes()))
        return done

    monkeypatch.setattr(Path, "write_bytes", keep)
    bank.tls(shop.public, server=True)
    [(mode, written)] = kept
    assert mode == 0o600
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in written
    assert b"BEGIN PRIVATE KEY" not in written
    assert not list(tmp_path.iterdir())
