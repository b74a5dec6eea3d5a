"""The messages as bytes: every type of every mailbox, field by field, against what was written down.

A change that these tests notice is a change of the wire. Fields and union members may only be appended, fields with a
default. To record an addition, append the line to golden_messages.txt, or put in the number, that the failing test
prints; lines that are there stay.
"""

import zlib
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from ringpost.ipc.codec import Codec
from ringpost.ipc.messages import control, load, outputs, plans, requests, results, status
from ringpost.ipc.messages.base import Message, Record, fingerprint
from ringpost.ipc.messages.config import EngineConfig
from ringpost.ipc.messages.payload import Payload

GOLDEN = Path(__file__).with_name("golden_messages.txt")
UNIONS: dict[str, Any] = {
    "ToActor": control.ToActor,
    "FromActor": control.FromActor,
    "LoadMessage": load.LoadMessage,
    "OutputMessage": outputs.OutputMessage,
    "PlanMessage": plans.PlanMessage,
    "RequestMessage": requests.RequestMessage,
    "ResultMessage": results.ResultMessage,
    "ActorStatus": status.ActorStatus,
}
FINGERPRINTS: dict[str, int] = {
    "ToActor": 0x5848DAC0D18A9BA3,
    "FromActor": 0xA7EF402BD4BFDBAD,
    "LoadMessage": 0x5995790BAFDB3209,
    "OutputMessage": 0x273A0F800C86BB5B,
    "PlanMessage": 0x33FE77717EC09989,
    "RequestMessage": 0xC96F6728429B52A5,
    "ResultMessage": 0x1C98B8E7D7CC41E7,
    "ActorStatus": 0x76528E50FBEF67C9,
}
MEMBERS = [(union, member) for union in UNIONS for member in get_args(UNIONS[union]) or (UNIONS[union],)]
IDS = [f"{union}-{member.__name__}" for union, member in MEMBERS]


def sample(kind: inspect.Type, name: str) -> Any:
    """A value of this type that depends on the name of its field, so that two fields swapped give other bytes."""
    number = zlib.crc32(name.encode()) % 1000
    match kind:
        case inspect.Metadata(type=inner):
            return sample(inner, name)
        case inspect.BoolType():
            return True
        case inspect.IntType(ge=low):
            return number + (low or 0)
        case inspect.FloatType(ge=low, gt=above):
            return number / 4096 + (low or 0) + (above or 0)
        case inspect.StrType():
            return name
        case inspect.BytesType():
            return name.encode()
        case inspect.LiteralType(values=values):
            return values[-1]
        case inspect.EnumType(cls=cls):
            return list(cls)[-1]
        case inspect.ListType(item_type=item):
            return [sample(item, f"{name}{index}") for index in range(2)]
        case inspect.VarTupleType(item_type=item):
            return tuple(sample(item, f"{name}{index}") for index in range(2))
        case inspect.TupleType(item_types=items):
            return tuple(sample(item, f"{name}{index}") for index, item in enumerate(items))
        case inspect.DictType(key_type=key, value_type=value):
            return {sample(key, name): sample(value, name)}
        case inspect.UnionType(types=types):
            return sample(next(one for one in types if not isinstance(one, inspect.NoneType)), name)
        case inspect.StructType(cls=cls):
            return full(cls)
        case inspect.AnyType():
            return name
        case inspect.CustomType(cls=cls) if cls is Payload:
            return Payload(name.encode())
    raise AssertionError(f"{name}: no sample for {kind}; add one")


def full(cls: type) -> Any:
    """An instance in which every field that can differ from its default does."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    # These are checked beyond their types.
    ranges = {
        "temperature": 0.5,
        "top_p": 0.75,
        "min_p": 0.25,
        "min_tokens": 5,
        "mailbox_bytes": 1 << 17,
        "max_pattern_size": 8,
    }
    ranges |= {"min_pattern_size": 4, "min_count": 3}
    return cls(**{field.name: ranges.get(field.name, sample(field.type, field.name)) for field in info.fields})


def golden() -> dict[str, list[bytes]]:
    """Recorded bytes by type, oldest first."""
    found: dict[str, list[bytes]] = {}
    for line in GOLDEN.read_text(encoding="ascii").splitlines():
        name, _, digits = line.partition(" ")
        found.setdefault(name, []).append(bytes.fromhex(digits))
    return found


@pytest.mark.parametrize(("union", "member"), MEMBERS, ids=IDS)
def test_round_trip(union: str, member: type) -> None:
    value = full(member)
    codec: Codec[Any] = Codec(UNIONS[union])
    decoded = codec.decode_parts([memoryview(codec.encode(value)), *codec.take_attachments()])
    assert type(decoded) is member
    assert decoded == value


@pytest.mark.parametrize(("union", "member"), MEMBERS, ids=IDS)
def test_bytes_are_as_recorded(union: str, member: type) -> None:
    encoded = Codec(UNIONS[union]).encode(full(member))
    recorded = golden().get(member.__name__, [b""])
    assert recorded[-1] == encoded, f"the wire form changed; now:\n{member.__name__} {encoded.hex()}"


@pytest.mark.parametrize(("union", "member"), MEMBERS, ids=IDS)
def test_older_bytes_are_still_understood(union: str, member: type) -> None:
    codec: Codec[Any] = Codec(UNIONS[union])
    attachments = [memoryview(b"one"), memoryview(b"two")]
    for encoded in golden().get(member.__name__, []):
        decoded = codec.decode_parts([memoryview(encoded), *attachments])
        assert type(decoded) is member
        assert codec.decode_parts([memoryview(codec.encode(decoded)), *codec.take_attachments()]) == decoded


@pytest.mark.parametrize("union", sorted(UNIONS))
def test_fingerprints_are_as_recorded(union: str) -> None:
    value = fingerprint(UNIONS[union])
    assert value == FINGERPRINTS.get(union), f"the union changed: see the top of this file; now 0x{value:016X}"


def test_fingerprints_tell_unions_apart() -> None:
    assert len({fingerprint(union) for union in UNIONS.values()}) == len(UNIONS)


def test_every_message_has_a_mailbox() -> None:
    members = {member for _, member in MEMBERS}
    ours = [cls for cls in Message.__subclasses__() if cls.__module__.startswith("ringpost.ipc.")]
    strays = [cls.__name__ for cls in ours if cls not in members]
    assert not strays, f"in no union: {strays}"


def test_every_recorded_type_exists() -> None:
    assert set(golden()) == {member.__name__ for _, member in MEMBERS}


@pytest.mark.parametrize("cls", [*Message.__subclasses__(), *Record.__subclasses__()], ids=lambda cls: cls.__name__)
def test_messages_are_frozen_arrays(cls: type[msgspec.Struct]) -> None:
    assert cls.__struct_config__.frozen
    assert cls.__struct_config__.array_like
    assert bool(cls.__struct_config__.tag) is issubclass(cls, Message)


def test_the_config_crosses_processes_whole() -> None:
    config = full(EngineConfig)
    assert config != EngineConfig()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config


def test_a_misspelt_option_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="block_sizes"):
        msgspec.convert({"cache": {"block_sizes": 16}}, type=EngineConfig)
