"""Encrypted streams over socket pairs, driven by hand."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.certificates import Authority

from dualpath.transport.tls import Tls, TlsStream

Pair = tuple[TlsStream, TlsStream]
SMALL_BUFFER = 4096


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return Authority(tmp_path_factory.mktemp("tls")).tls("node")


@pytest.fixture
def pair(tls: Tls) -> Iterator[Pair]:
    """Both ends of a connection whose kernel buffers are as small as they can be, after the handshake."""
    one, other = socket.socketpair()
    for sock in (one, other):
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
    client = TlsStream(one, tls._client, "127.0.0.1")
    server = TlsStream(other, tls._server)
    done = [False, False]
    while not all(done):
        for index, stream in enumerate((client, server)):
            done[index] = done[index] or stream.shake_hands()
            stream.flush()
    yield client, server
    client.close()
    server.close()


def scattered(data: bytearray, draw: random.Random) -> list[memoryview]:
    """All of `data`, in pieces from nothing to several records."""
    pieces = []
    start = 0
    while start < len(data):
        size = draw.choice([0, 1, 40, 300, 16_383, 16_384, 50_000, 50_000])
        pieces.append(memoryview(data)[start : start + size])
        start += size
    return pieces


def advance(pieces: list[memoryview], nbytes: int) -> None:
    while pieces and nbytes >= len(pieces[0]):
        nbytes -= len(pieces.pop(0))
    if nbytes:
        pieces[0] = pieces[0][nbytes:]


@pytest.mark.parametrize("seed", range(6))
def test_bytes_come_out_as_they_went_in_however_both_sides_take_turns(
    pair: Pair, seed: int
) -> None:
    draw = random.Random(seed)
    data = bytearray(draw.randbytes(draw.choice([1, 5000, 400_000])))
    target = bytearray(len(data))
    out, into = scattered(data, draw), scattered(target, draw)
    sender, receiver = draw.sample(pair, 2)
    flushed = False
    while into:
        if draw.random() < 0.6:
            try:
                if out:
                    advance(out, sender.sendmsg(out[: draw.randrange(1, 20)]))
                flushed = sender.flush()
            except BlockingIOError:
                flushed = False
        for _ in range(draw.randrange(3)):
            if not into:
                break
            try:
                advance(into, receiver.recvmsg_into(into[: draw.randrange(1, 20)])[0])
            except BlockingIOError:
                # What is still to come lies with the sender, and it knows.
                assert out or not flushed
    assert target == data


def test_what_the_kernel_does_not_take_is_known_and_bounded(pair: Pair) -> None:
    sender, receiver = pair
    data = bytes(8 << 20)
    taken = sender.sendmsg([memoryview(data)])
    assert 0 < taken <= 1 << 20
    assert not sender.flush()
    with pytest.raises(BlockingIOError):
        sender.sendmsg([memoryview(data)])
    got = 0
    target = memoryview(bytearray(1 << 20))
    while got < taken:
        sender.flush()
        with contextlib.suppress(BlockingIOError):
            got += receiver.recvmsg_into([target])[0]
    assert sender.flush()
    with pytest.raises(BlockingIOError):
        receiver.recvmsg_into([target])
    assert not receiver.unread()


def test_bytes_that_the_kernel_has_given_but_nobody_read_are_known(pair: Pair) -> None:
    sender, receiver = pair
    sender.sendmsg([memoryview(b"x" * 100)])
    target = memoryview(bytearray(60))
    assert receiver.recvmsg_into([target])[0] == 60
    assert receiver.unread()
    assert receiver.recvmsg_into([target])[0] == 40
    assert not receiver.unread()


def test_the_end_of_the_connection_is_the_end_of_the_stream(pair: Pair) -> None:
    sender, receiver = pair
    sender.sendmsg([memoryview(b"last words")])
    sender.close()
    target = memoryview(bytearray(100))
    assert receiver.recvmsg_into([target])[0] == 10
    assert receiver.recvmsg_into([target])[0] == 0
    assert receiver.recv(1, socket.MSG_PEEK) == b""


def test_bytes_that_were_changed_on_the_way_are_not_taken(tls: Tls, pair: Pair) -> None:
    sender, receiver = pair
    sender._tls.write(b"x" * 100)
    sealed = bytearray(sender._outgoing.read())
    sealed[50] ^= 1
    sender._sock.send(sealed)
    target = memoryview(bytearray(100))
    with pytest.raises(ssl.SSLError):
        receiver.recvmsg_into([target])
    assert not any(target)


def test_both_ends_have_a_binding_that_no_other_connection_has(tls: Tls, pair: Pair) -> None:
    client, server = pair
    assert client.binding == server.binding
    assert len(client.binding) >= 32


def test_a_peer_that_reads_no_answers_of_tls_cannot_make_them_pile_up(pair: Pair) -> None:
    stream = pair[0]
    stream._outgoing.write(bytes(65_537))
    with pytest.raises(ConnectionAbortedError, match="reads none"):
        stream.recvmsg_into([memoryview(bytearray(10))])


def test_files_that_cannot_be_used_are_told_by_their_settings(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("one")
    _, other_key = authority.issue("other")
    with pytest.raises(ValueError, match=r"tls_ca .* No such file"):
        Tls(certificate, key, tmp_path / "missing")
    with pytest.raises(ValueError, match=r"tls_key .* not of the same pair"):
        Tls(certificate, other_key, authority.file)
    with pytest.raises(ValueError, match=r"tls_certificate .* no PEM"):
        Tls(key, key, authority.file)
