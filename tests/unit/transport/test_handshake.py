from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.lanes.api import Lane
from dualpath.transport import handshake
from dualpath.transport.handshake import Refusal
from dualpath.wire.codec import encode
from dualpath.wire.types import Address

DIALER = Address("dialer", "d1", "127.0.0.1", 1)
LISTENER = Address("listener", "l1", "127.0.0.1", 2)
SECRET = b"secret"


def test_a_hello_survives_the_wire() -> None:
    hello = handshake.hello(
        DIALER, Lane.HIGH, LISTENER, deadline_s=5.0, fingerprint="model", known_link="link"
    )
    assert handshake.read_hello(encode(hello)) == hello


def test_two_hellos_never_have_the_same_nonce() -> None:
    nonces = {
        handshake.hello(DIALER, Lane.LOW, LISTENER, deadline_s=5.0).nonce for _ in range(1000)
    }
    assert len(nonces) == 1000


def test_a_proof_is_good_for_its_secret_role_and_hellos_only() -> None:
    proof = handshake.proof(SECRET, "dialer", b"a", b"b")
    handshake.check_proof(encode(handshake.Proof(proof)), proof)
    for other in (
        handshake.proof(b"another", "dialer", b"a", b"b"),
        handshake.proof(SECRET, "listener", b"a", b"b"),
        handshake.proof(SECRET, "dialer", b"a", b"c"),
        handshake.proof(SECRET, "dialer", b"ab", b""),
        handshake.proof(SECRET, "dialer", b"b", b"a"),
    ):
        with pytest.raises(Refusal, match="secret"):
            handshake.check_proof(encode(handshake.Proof(other)), proof)
        with pytest.raises(Refusal, match="secret"):
            handshake.check_welcome(encode(handshake.Welcome(other)), proof)


def test_a_refusal_reaches_the_dialer_with_code_and_reason() -> None:
    said = handshake.refuse(Refusal("fingerprint", "they differ"))
    with pytest.raises(Refusal, match="they differ") as caught:
        handshake.check_welcome(said, b"")
    assert caught.value.code == "fingerprint"


@pytest.mark.parametrize(
    "changes",
    [
        {"nonce": b"short"},
        {"lane": 7},
        {"deadline_s": 0.0},
        {"deadline_s": float("nan")},
        {"sender": Address("", "x", "h", 1)},
        {"sender": Address("x", "", "h", 1)},
    ],
)
def test_hellos_that_make_no_sense_are_refused(changes: dict[str, object]) -> None:
    hello = msgspec.structs.replace(
        handshake.hello(DIALER, Lane.LOW, LISTENER, deadline_s=5.0), **changes
    )
    with pytest.raises(Refusal) as caught:
        handshake.read_hello(encode(hello))
    assert caught.value.code == "malformed"


def test_another_version_is_named_whatever_else_its_hello_says() -> None:
    foreign = msgspec.msgpack.encode({"t": "Hello", "protocol": 9, "everything": "else"})
    with pytest.raises(Refusal, match="version 9") as caught:
        handshake.read_hello(foreign)
    assert caught.value.code == "version"


def test_a_listener_that_is_not_the_one_meant_is_refused() -> None:
    mine = handshake.hello(DIALER, Lane.LOW, LISTENER, deadline_s=5.0)
    handshake.check_listener(mine, handshake.hello(LISTENER, Lane.LOW, DIALER, deadline_s=5.0))
    for sender in (
        msgspec.structs.replace(LISTENER, endpoint_id="other"),
        msgspec.structs.replace(LISTENER, incarnation="other"),
    ):
        with pytest.raises(Refusal, match="answered"):
            handshake.check_listener(
                mine, handshake.hello(sender, Lane.LOW, DIALER, deadline_s=5.0)
            )


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else(data: bytes) -> None:
    for check in (
        handshake.read_hello,
        lambda data: handshake.check_proof(data, b""),
        lambda data: handshake.check_welcome(data, b""),
    ):
        with pytest.raises(Refusal):
            check(data)
