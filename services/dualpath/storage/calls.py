"""What the shard's calls share: their peer, the checks of what peers ask, and how an answer leaves."""

from __future__ import annotations

from dualpath.blocks.keys import KEY_BYTES, unpack_keys
from dualpath.kvstore.checksum import CHECKSUM_BYTES
from dualpath.telemetry.logs import get_logger
from dualpath.transport.api import Endpoint, MessageRefused, TransportError
from dualpath.wire.codec import Message, encode
from dualpath.wire.store import MAX_BLOCK_BYTES, MAX_KEYS, Namespace
from dualpath.wire.types import Address

log = get_logger(__name__)

MAX_DEADLINE_S = 600.0
_MAX_FINGERPRINT = 512


class Refusal(MessageRefused):
    """The peer asked for what the shard does not do; the text is a sentence for it."""


def check_namespace(namespace: Namespace) -> None:
    """Raises Refusal where it is beyond the protocol's limits."""
    if not 1 <= namespace.block_bytes <= MAX_BLOCK_BYTES:
        raise Refusal(
            f"blocks of {namespace.block_bytes} bytes cannot be stored: 1 to {MAX_BLOCK_BYTES} can; "
            "choose a smaller block_tokens"
        )
    if not 1 <= len(namespace.fingerprint) <= _MAX_FINGERPRINT:
        raise Refusal(f"a fingerprint has 1 to {_MAX_FINGERPRINT} characters")


def check_keys(namespace: Namespace, packed: bytes) -> list[bytes]:
    """The keys of a message; raises Refusal where they or the namespace are beyond the protocol's limits."""
    check_namespace(namespace)
    if len(packed) > MAX_KEYS * KEY_BYTES:
        raise Refusal(f"a message may name {MAX_KEYS} keys, not {len(packed) // KEY_BYTES}")
    try:
        return unpack_keys(packed)
    except ValueError as error:
        raise Refusal(str(error)) from error


def check_offsets(offsets: tuple[int, ...], keys: list[bytes]) -> None:
    if len(offsets) != len(keys):
        raise Refusal(f"{len(offsets)} offsets came with {len(keys)} keys")
    if any(not 0 <= offset < 1 << 63 for offset in offsets):
        raise Refusal("an offset is out of range")


def check_checksums(checksums: bytes, keys: list[bytes]) -> None:
    if len(checksums) != CHECKSUM_BYTES * len(keys):
        raise Refusal(f"{len(checksums)} bytes of checksums came with {len(keys)} keys")


def check_depths(depths: tuple[int, ...], keys: list[bytes]) -> None:
    if len(depths) != len(keys):
        raise Refusal(f"{len(depths)} depths came with {len(keys)} keys")
    if any(not 0 <= depth < 1 << 32 for depth in depths):
        raise Refusal("a depth is out of range")


def check_deadline(deadline_s: float) -> float:
    """The deadline, cut to what the shard grants; raises Refusal for one that is no time."""
    if not deadline_s > 0:
        raise Refusal(f"a deadline of {deadline_s} s has passed already")
    return min(deadline_s, MAX_DEADLINE_S)


async def answer(endpoint: Endpoint, peer: Address, message: Message) -> bool:
    """Send the end of a call; False where the peer cannot be reached or does not want it any more."""
    try:
        await endpoint.send(peer, encode(message))
    except TransportError as error:
        log.info("an answer was not taken", peer=peer.endpoint_id, error=str(error))
        return False
    return True
