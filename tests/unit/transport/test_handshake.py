from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.lanes.api import Lane
from dualpath.transport import handshake
from dualpath.transport.handshake import Proofs, Refusal
from dualpath.wire.codec import PROTOCOL_VERSION, encode
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


def test_a_proof_is_good_for_its_secret_role_connection_and_hellos_only() -> None:
    right = Proofs(SECRET, b"a", b"b", b"connection")
    handshake.check_proof(encode(handshake.Proof(right.dialer)), right.dialer)
    handshake.check_welcome(encode(handshake.Welcome(right.listener)), right.listener)
    others = [
        Proofs(b"another", b"a", b"b", b"connection"),
        Proofs(SECRET, b"a", b"c", b"connection"),
        Proofs(SECRET, b"ab", b"", b"connection"),
        Proofs(SECRET, b"b", b"a", b"connection"),
        Proofs(SECRET, b"a", b"b", b"another"),
        Proofs(SECRET, b"a", b"b"),
    ]
    macs = [mac for other in others for mac in (other.dialer, other.listener)]
    for mac in (*macs, right.listener, b"", right.dialer[:-1]):
        with pytest.raises(Refusal, match="secret"):
            handshake.check_proof(encode(handshake.Proof(mac)), right.dialer)
    for mac in (*macs, right.dialer, b"", right.listener[:-1]):
        with pytest.raises(Refusal, match="secret"):
            handshake.check_welcome(encode(handshake.Welcome(mac)), right.listener)


OTHERWISE = {
    "protocol": PROTOCOL_VERSION + 1,
    "nonce": bytes(16),
    "sender": LISTENER,
    "fingerprint": "another",
    "lane": int(Lane.HIGH),
    "deadline_s": 6.0,
    "target_id": "another",
    "target_incarnation": "l0",
    "known_link": "another",
    "meeting": "elsewhere",
}


@pytest.mark.parametrize("field", handshake.Hello.__struct_fields__)
def test_every_field_of_a_hello_is_under_the_proofs(field: str) -> None:
    said = handshake.hello(DIALER, Lane.LOW, LISTENER, deadline_s=5.0, fingerprint="model")
    changed = msgspec.structs.replace(said, **{field: OTHERWISE[field]})
    right = Proofs(SECRET, encode(said), b"theirs")
    wrong = Proofs(SECRET, encode(changed), b"theirs")
    assert right.dialer != wrong.dialer
    assert right.listener != wrong.listener


def test_a_refusal_reaches_the_dialer_with_code_and_reason() -> None:
    said = handshake.refuse(Refusal("fingerprint", "they differ"))
    heard = handshake.read_refusal(said)
    assert (heard.code, str(heard)) == ("fingerprint", "they differ")


def test_the_words_of_a_refusal_cannot_steer_a_terminal_or_fill_a_log() -> None:
    said = handshake.refuse(Refusal("x", "\x1b[2J\nroot: all is well" + "!" * 3000))
    heard = str(handshake.read_refusal(said))
    assert heard.isprintable()
    assert heard.startswith("?[2J?root: all is well!")
    assert len(heard) == 500


@pytest.mark.parametrize(
    "changes",
    [
        {"nonce": b"short"},
        {"lane": 7},
        {"deadline_s": 0.0},
        {"deadline_s": float("nan")},
        {"sender": Address("", "x", "h", 1)},
        {"sender": Address("x", "", "h", 1)},
        {"sender": Address("x" * 201, "x", "h", 1)},
        {"sender": Address("x", "\x1b[2J", "h", 1)},
        {"sender": Address("x", "x", "a\nb", 1)},
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


def test_an_answer_to_another_dialer_or_on_another_lane_is_refused() -> None:
    mine = handshake.hello(DIALER, Lane.LOW, LISTENER, deadline_s=5.0)
    for target, lane in (
        (LISTENER, Lane.LOW),
        (msgspec.structs.replace(DIALER, incarnation="d0"), Lane.LOW),
        (DIALER, Lane.HIGH),
    ):
        with pytest.raises(Refusal, match="somebody else, or on another lane"):
            handshake.check_listener(mine, handshake.hello(LISTENER, lane, target, deadline_s=5.0))


def test_later_incarnations_sort_behind_earlier_ones_and_none_is_drawn_twice() -> None:
    drawn = [handshake.incarnation() for _ in range(1000)]
    assert len(set(drawn)) == 1000
    assert drawn[0] < drawn[-1]


def test_the_earlier_of_two_lives_is_refused() -> None:
    first, second = handshake.incarnation(), handshake.incarnation()
    handshake.check_life(first, msgspec.structs.replace(DIALER, incarnation=second))
    with pytest.raises(Refusal, match="stop the older process") as caught:
        handshake.check_life(second, msgspec.structs.replace(DIALER, incarnation=first))
    assert caught.value.code == "incarnation"


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else(data: bytes) -> None:
    for check in (
        handshake.read_hello,
        lambda data: handshake.check_proof(data, b""),
        lambda data: handshake.check_welcome(data, b""),
    ):
        with pytest.raises(Refusal):
            check(data)
    assert handshake.read_refusal(data).code == "malformed"
