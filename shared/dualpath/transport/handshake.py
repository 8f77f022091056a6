"""Who may open a link: both ends prove that they know the cluster's secret. Pure but for what is drawn:
nonces and incarnations.

    dialer                         listener
    HELLO (identity, nonce)   →
                              ←    HELLO (identity, nonce)
    PROOF (mac)               →
                              ←    WELCOME (mac), or REFUSE (reason)

Each mac is an HMAC-SHA256 of the secret over the prover's role and both HELLOs (nonces, protocol, lane, identities,
incarnations, fingerprints), and over what tells a TLS connection from all others: none can be replayed, reflected,
or passed on to another connection. What the two tell each other is used only once the mac was right, but for the
version. Without TLS (`tls`) the bytes that follow are neither encrypted nor signed.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from hashlib import sha256

from dualpath.lanes.api import Lane
from dualpath.transport.frames import HEADER_BYTES, MAGIC, MAX_HANDSHAKE_BYTES
from dualpath.wire.codec import PROTOCOL_VERSION, Decoder, MalformedMessage, Message, encode
from dualpath.wire.types import Address

NONCE_BYTES = 16
MIN_DEADLINE_S = 0.05
MAX_NAME = 200
"""Characters of an endpoint's id and of its incarnation."""
FIRST_BYTE = MAGIC.to_bytes(2, "little")[:1]
"""Of what a dialer without TLS says."""
MAX_FIRST_BYTES = HEADER_BYTES + MAX_HANDSHAKE_BYTES

CROSSING = "crossing"
"""Refused because a link between the two exists or is being made that the dialer did not know of."""


class _Version(Message, frozen=True, tag="Hello"):
    """What every version's Hello says."""

    protocol: int


class Hello(Message, frozen=True):
    """Who speaks, and whom it means. The rest of `protocol` version 1."""

    protocol: int
    nonce: bytes
    sender: Address
    fingerprint: str
    lane: int
    deadline_s: float
    """Silence after which the speaker cuts the link: the other side must be heard well within it."""
    target_id: str
    target_incarnation: str
    """Empty: whichever life of it listens there."""
    known_link: str
    """The link between the two, on this lane, that the dialer has or had last."""
    meeting: str = ""
    """The abstract Unix socket where the speaker takes memory of peers on its host; empty: nowhere."""


class Proof(Message, frozen=True):
    mac: bytes


class Welcome(Message, frozen=True):
    mac: bytes


class Refuse(Message, frozen=True):
    code: str
    reason: str


class Refusal(Exception):
    """The handshake ends here. `code` is a stable word, the text a sentence for people."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


_decode_version = Decoder(_Version)
_decode_hello = Decoder(Hello)
_decode_proof = Decoder(Proof)
_decode_welcome = Decoder(Welcome)
_decode_refuse = Decoder(Refuse)


def incarnation() -> str:
    """For a new endpoint: never drawn twice, and later ones sort behind earlier ones (by the clock)."""
    return f"{time.time_ns():016x}{secrets.token_hex(4)}"


def hello(
    sender: Address,
    lane: Lane,
    target: Address,
    *,
    deadline_s: float,
    fingerprint: str = "",
    known_link: str = "",
    meeting: str = "",
) -> Hello:
    return Hello(
        protocol=PROTOCOL_VERSION,
        nonce=secrets.token_bytes(NONCE_BYTES),
        sender=sender,
        fingerprint=fingerprint,
        lane=int(lane),
        deadline_s=deadline_s,
        target_id=target.endpoint_id,
        target_incarnation=target.incarnation,
        known_link=known_link,
        meeting=meeting,
    )


def read_hello(data: bytes) -> Hello:
    """Raise Refusal for another version, or what is no Hello."""
    try:
        version = _decode_version(data).protocol
        if version != PROTOCOL_VERSION:
            raise Refusal(
                "version",
                f"the peer speaks protocol version {version}, this process {PROTOCOL_VERSION}; "
                "run the same release on both sides",
            )
        decoded: Hello = _decode_hello(data)
    except MalformedMessage as error:
        raise Refusal("malformed", f"the peer's HELLO cannot be read: {error}") from error
    if len(decoded.nonce) != NONCE_BYTES or decoded.lane not in tuple(Lane):
        raise Refusal("malformed", "the peer's HELLO names no lane, or its nonce has a wrong size")
    if not decoded.deadline_s >= MIN_DEADLINE_S:
        raise Refusal("malformed", f"the peer's deadline is shorter than {MIN_DEADLINE_S} s")
    sender = decoded.sender
    if not sender.endpoint_id or not sender.incarnation:
        raise Refusal("malformed", "the peer's HELLO does not say who it is")
    for name in (sender.endpoint_id, sender.incarnation, sender.host, decoded.meeting):
        if len(name) > MAX_NAME or not name.isprintable():
            raise Refusal(
                "malformed", "the peer's HELLO has a name that is too long, or unprintable"
            )
    return decoded


class Proofs:
    """The macs by which both sides prove that they know the secret; the HELLOs as they were on the wire.

    `binding` tells the TLS connection from all others; empty without TLS.
    """

    def __init__(
        self, secret: bytes, dialer_hello: bytes, listener_hello: bytes, binding: bytes = b""
    ) -> None:
        said = (dialer_hello, listener_hello, binding)
        transcript = b"".join(sha256(part).digest() for part in said)
        self.dialer = hmac.digest(secret, b"dualpath.link.1.dialer" + transcript, "sha256")
        self.listener = hmac.digest(secret, b"dualpath.link.1.listener" + transcript, "sha256")


def check_proof(data: bytes, expected: bytes) -> None:
    """At the listener. Raise Refusal where the dialer does not know the secret."""
    _check_mac("PROOF", _decode_proof, data, expected)


def check_welcome(data: bytes, expected: bytes) -> None:
    """At the dialer. Raise Refusal where the listener does not know the secret."""
    _check_mac("WELCOME", _decode_welcome, data, expected)


def _check_mac(
    kind: str, decode: Callable[[bytes], Proof | Welcome], data: bytes, expected: bytes
) -> None:
    try:
        right = hmac.compare_digest(decode(data).mac, expected)
    except MalformedMessage as error:
        raise Refusal("malformed", f"the peer's {kind} cannot be read: {error}") from error
    if not right:
        raise Refusal(
            "secret", "the peer uses another cluster secret; give both sides the same one"
        )


def read_refusal(data: bytes) -> Refusal:
    """What a REFUSE says. Its words come from anybody: they are cut, and cannot steer a terminal."""
    try:
        said: Refuse = _decode_refuse(data)
    except MalformedMessage as error:
        return Refusal("malformed", f"the peer's REFUSE cannot be read: {error}")
    reason = "".join(letter if letter.isprintable() else "?" for letter in said.reason[:500])
    return Refusal(said.code, reason)


def check_identity(mine: Hello, theirs: Hello, me: Address) -> None:
    """At the listener, once the proof was right. `mine` is the answer to `theirs`. Raises Refusal."""
    if theirs.target_id != me.endpoint_id:
        raise Refusal(
            "identity",
            f"{theirs.sender.endpoint_id} dialed {theirs.target_id}, but {me.endpoint_id} listens here",
        )
    if theirs.target_incarnation not in ("", me.incarnation):
        raise Refusal(
            "incarnation",
            f"{me.endpoint_id} has restarted: life {theirs.target_incarnation}, which "
            f"{theirs.sender.endpoint_id} dialed, is gone, {me.incarnation} is here; ask for its new address",
        )
    check_fingerprint(mine, theirs)


def check_fingerprint(mine: Hello, theirs: Hello) -> None:
    """An empty fingerprint on either side serves any model. Raises Refusal."""
    if mine.fingerprint and theirs.fingerprint and mine.fingerprint != theirs.fingerprint:
        raise Refusal(
            "fingerprint",
            f"{theirs.sender.endpoint_id} serves model {theirs.fingerprint}, "
            f"{mine.sender.endpoint_id} serves {mine.fingerprint}; their KV is not interchangeable",
        )


def check_listener(mine: Hello, theirs: Hello) -> None:
    """At the dialer, once the welcome was right: is it whom `mine` means, and does it mean this side?

    Raises Refusal.
    """
    if theirs.sender.endpoint_id != mine.target_id or mine.target_incarnation not in (
        "",
        theirs.sender.incarnation,
    ):
        raise Refusal(
            "identity",
            f"{mine.target_id} was dialed, but {theirs.sender.endpoint_id} "
            f"({theirs.sender.incarnation}) answered",
        )
    meant = (theirs.target_id, theirs.target_incarnation, theirs.lane)
    if meant != (mine.sender.endpoint_id, mine.sender.incarnation, mine.lane):
        raise Refusal(
            "identity", f"{theirs.sender.endpoint_id} answered somebody else, or on another lane"
        )
    check_fingerprint(mine, theirs)


def check_life(known: str, theirs: Address) -> None:
    """`known` is the incarnation of a link that is up, of the same endpoint. Raise Refusal where the
    newcomer is the life before it."""
    if theirs.incarnation < known:
        raise Refusal(
            "incarnation",
            f"{theirs.endpoint_id} has restarted: life {theirs.incarnation} is over, {known} is linked "
            "here; stop the older process, or give one of the two another name",
        )


def refuse(refusal: Refusal) -> bytes:
    return encode(Refuse(code=refusal.code, reason=str(refusal)))
