"""Encode and decode messages. A field that is unknown is ignored, one that is missing is an error."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

PROTOCOL_VERSION = 3
"""Peers of different versions refuse each other at registration and in the link handshake."""

MAX_MESSAGE_BYTES = 1 << 20
"""What a receiver accepts at most as one message; KV bytes are no messages."""

M = TypeVar("M")


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=False, tag=True, tag_field="t"):
    """Base of all messages: a map on the wire, its type under the key `t`."""


class MalformedMessage(ValueError):
    """Bytes from a peer that are no message of the expected kind."""


_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


class Decoder:
    """Decodes any of the given message types.

    >>> link_decoder = Decoder(LoadDone, Grant)
    """

    def __init__(self, *types: type[Message]) -> None:
        union: Any = types[0]
        for kind in types[1:]:
            union = union | kind
        self._decoder = msgspec.msgpack.Decoder(union)

    def __call__(self, data: bytes | bytearray | memoryview) -> Any:
        """Raise MalformedMessage for anything that is not one of the types, or is too large."""
        if len(data) > MAX_MESSAGE_BYTES:
            raise MalformedMessage(
                f"a message of {len(data)} bytes; at most {MAX_MESSAGE_BYTES} are accepted"
            )
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            raise MalformedMessage(str(error)) from error
