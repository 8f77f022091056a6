"""Every message survives the wire, is plain MessagePack there, and garbage is answered with one error."""

from __future__ import annotations

import types
import typing
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.wire import control, data, store
from dualpath.wire.codec import MAX_MESSAGE_BYTES, Decoder, MalformedMessage, Message, encode
from dualpath.wire.types import Value

MODULES: tuple[types.ModuleType, ...] = (control, data, store)
DECODERS: dict[types.ModuleType, tuple[Decoder, ...]] = {
    control: (control.to_scheduler, control.to_node, control.to_gateway, control.answer),
    data: (data.link,),
    store: (store.to_shard, store.to_client),
}


def messages_of(module: types.ModuleType) -> list[type[Message]]:
    return [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Message)
        and kind.__module__ == module.__name__
    ]


ALL = [(module, kind) for module in MODULES for kind in messages_of(module)]


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, Message | Value):
        return structs(annotation)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(arg) for arg in args])
    if origin is tuple:
        if args[-1] is Ellipsis:
            return st.lists(values(args[0]), max_size=3).map(tuple)
        return st.tuples(*[values(arg) for arg in args])
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False),
        str: st.text(st.characters(codec="utf-8"), max_size=12),
        bytes: st.binary(max_size=40),
        bool: st.booleans(),
        type(None): st.none(),
    }
    return plain[annotation]


def structs(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: values(hints[name]) for name in kind.__struct_fields__})


def test_every_message_has_a_decoder_and_a_tag_of_its_own() -> None:
    decoded: set[str] = set()
    for module, decoders in DECODERS.items():
        tags = [kind.__name__ for kind in messages_of(module)]
        assert len(set(tags)) == len(tags)
        accepted = {tag for tag in tags for decoder in decoders if _accepts(decoder, tag)}
        decoded |= {f"{module.__name__}.{tag}" for tag in accepted}
    nested = {
        "dualpath.wire.control.NodeView",
        "dualpath.wire.control.TokenEvent",
        "dualpath.wire.store.Namespace",
    }
    assert decoded | nested == {f"{m.__name__}.{k.__name__}" for m, k in ALL}


def _accepts(decoder: Decoder, tag: str) -> bool:
    """Whether the tag is known: what is missing then is a field, if anything."""
    try:
        decoder(msgpack.packb({"t": tag}))
    except MalformedMessage as error:
        return "Invalid value" not in str(error)
    return True


@pytest.mark.parametrize(("module", "kind"), ALL, ids=lambda x: getattr(x, "__name__", ""))
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_it_comes_back_as_it_was_and_plain_msgpack_reads_it(
    module: types.ModuleType, kind: type[Message], draw: st.DataObject
) -> None:
    message = draw.draw(structs(kind))
    wire = encode(message)
    assert Decoder(kind)(wire) == message
    plain = msgpack.unpackb(wire, strict_map_key=False, use_list=False)
    assert plain["t"] == kind.__name__
    assert set(plain) == {"t", *kind.__struct_fields__}
    assert plain == msgspec.to_builtins(message, builtin_types=(bytes,))


@pytest.mark.parametrize(("module", "kind"), ALL, ids=lambda x: getattr(x, "__name__", ""))
def test_messages_cannot_be_changed(module: types.ModuleType, kind: type[Message]) -> None:
    assert kind.__struct_config__.frozen


def test_unknown_fields_are_ignored_and_missing_ones_are_not() -> None:
    decode = Decoder(store.WriteCommit)
    assert decode(msgpack.packb({"t": "WriteCommit", "op": 3, "later": [1]})) == store.WriteCommit(
        3
    )
    with pytest.raises(MalformedMessage, match="op"):
        decode(msgpack.packb({"t": "WriteCommit"}))


def test_a_message_of_another_kind_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match="Match"):
        store.to_client(encode(store.Match(1, store.Namespace("f", 1), b"")))


@pytest.mark.parametrize("decode", [d for ds in DECODERS.values() for d in ds])
@settings(max_examples=60, deadline=None)
@given(garbage=st.binary(max_size=200))
def test_garbage_is_malformed_and_nothing_else(decode: Decoder, garbage: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(garbage)


@given(st.data())
def test_spoilt_messages_are_decoded_or_malformed(draw: st.DataObject) -> None:
    wire = bytearray(encode(draw.draw(structs(draw.draw(st.sampled_from(messages_of(control)))))))
    at = draw.draw(st.integers(0, len(wire) - 1))
    wire[at] ^= draw.draw(st.integers(1, 255))
    for decoder in DECODERS[control]:
        try:
            assert isinstance(decoder(wire), Message)
        except MalformedMessage:
            continue


def test_depth_and_size_are_bounded() -> None:
    with pytest.raises(MalformedMessage):
        control.answer(b"\x91" * 100_000)
    with pytest.raises(MalformedMessage, match="at most 1048576 are accepted"):
        control.answer(bytes(MAX_MESSAGE_BYTES + 1))
