"""Who may open a link: both ends prove that they know the cluster's secret. Pure.

    dialer                         listener
    HELLO (identity, nonce)   →
                              ←    HELLO (identity, nonce)
    PROOF (mac)               →
                              ←    WELCOME (mac), or REFUSE (reason)

Each mac is an HMAC-SHA256 of the secret over the prover's role and both HELLOs, nonces included, so that none
can be replayed or reflected. The secret guards against strangers and mistakes; bytes on the link are neither
encrypted nor signed. What the two tell each other is used only once the mac was right, but for the version.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256
from typing import Literal

from dualpath.lanes.api import Lane
from dualpath.wire.codec import PROTOCOL_VERSION, Decoder, MalformedMessage, Message, encode
from dualpath.wire.types import Address

Role = Literal["dialer", "listener"]
NONCE_BYTES = 16
MIN_DEADLINE_S = 0.05

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
_decode_answer = Decoder(Welcome, Refuse)


def hello(
    sender: Address,
    lane: Lane,
    target: Address,
    *,
    deadline_s: float,
    fingerprint: str = "",
    known_link: str = "",
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
    if not decoded.sender.endpoint_id or not decoded.sender.incarnation:
        raise Refusal("malformed", "the peer's HELLO does not say who it is")
    return decoded


def proof(secret: bytes, role: Role, dialer_hello: bytes, listener_hello: bytes) -> bytes:
    """The mac by which `role` proves that it knows the secret; the HELLOs as they were on the wire."""
    transcript = sha256(dialer_hello).digest() + sha256(listener_hello).digest()
    return hmac.digest(secret, b"dualpath.link.1." + role.encode() + transcript, "sha256")


def check_proof(data: bytes, expected: bytes) -> None:
    """At the listener. Raise Refusal where the dialer does not know the secret."""
    try:
        right = hmac.compare_digest(_decode_proof(data).mac, expected)
    except MalformedMessage as error:
        raise Refusal("malformed", f"the peer's PROOF cannot be read: {error}") from error
    if not right:
        raise Refusal(
            "secret", "the peer uses another cluster secret; give both sides the same one"
        )


def check_welcome(data: bytes, expected: bytes) -> None:
    """At the dialer. Raise Refusal where the listener refused, or does not know the secret."""
    try:
        answer: Welcome | Refuse = _decode_answer(data)
    except MalformedMessage as error:
        raise Refusal("malformed", f"the peer's answer cannot be read: {error}") from error
    if isinstance(answer, Refuse):
        raise Refusal(answer.code, answer.reason)
    if not hmac.compare_digest(answer.mac, expected):
        raise Refusal(
            "secret", "the peer uses another cluster secret; give both sides the same one"
        )


def check_identity(mine: Hello, theirs: Hello, me: Address) -> None:
    """At the listener, once the proof was right. `mine` is the answer to `theirs`. Raises Refusal."""
    if theirs.target_id != me.endpoint_id:
        raise Refusal(
            "identity", f"{theirs.target_id} was dialed, but {me.endpoint_id} listens here"
        )
    if theirs.target_incarnation not in ("", me.incarnation):
        raise Refusal(
            "incarnation",
            f"{me.endpoint_id} has restarted: life {theirs.target_incarnation} is gone, "
            f"{me.incarnation} is here; ask for its new address",
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
    """At the dialer, once the welcome was right: is it whom `mine` means? Raises Refusal."""
    if theirs.sender.endpoint_id != mine.target_id or mine.target_incarnation not in (
        "",
        theirs.sender.incarnation,
    ):
        raise Refusal(
            "identity",
            f"{mine.target_id} was dialed, but {theirs.sender.endpoint_id} "
            f"({theirs.sender.incarnation}) answered",
        )
    check_fingerprint(mine, theirs)


def refuse(refusal: Refusal) -> bytes:
    return encode(Refuse(code=refusal.code, reason=str(refusal)))
