"""Requests with faults in them: fields of the wrong kind of value, and bytes that are no message."""

from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

INTEGERS = (0, 1, -1, 2, 3, 1_000_000, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53 + 1, 2**63 - 1, -(2**63))
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, 5e-324, 1e-30, 1e18, 1e19, 1.8e308, -1.8e308, float("inf"), float("nan"))
TEXTS = (
    "",
    "fuzzed",
    "b",
    "paper",
    "a b",
    "\0",
    "../../etc",
    "ü" * 200,
    "'; DROP TABLE jobs; --",
    "x" * 129,
    "x" * 100_000,
)
ENUMS = (0, 1, 2, 3, 99, -1, 2**31 - 1)
VALUES_BY_TYPE: dict[int, Sequence[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: [value for value in INTEGERS if -(2**31) <= value < 2**31],
    FieldDescriptor.CPPTYPE_INT64: INTEGERS,
    FieldDescriptor.CPPTYPE_DOUBLE: NUMBERS,
    FieldDescriptor.CPPTYPE_STRING: TEXTS,
    FieldDescriptor.CPPTYPE_ENUM: ENUMS,
}
GARBAGE = (
    b"",
    b"\xff",
    b"\0" * 20,
    b"\x0a\xff\xff\xff\xff\x0f",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x0a\x01\xff",
    b"\xff" * 5_000,
)


PLACES = 1_000
CHOICES = 1_000
DAMAGES = 16


def mutated(message: Message, faults: Sequence[int]) -> bytes:
    """Encode a message with faults; each number says which field, which value, and which damage to the bytes."""
    changed = type(message)()
    changed.CopyFrom(message)
    for fault in faults:
        fields = list(_fields(changed))
        if fields:
            _set(*fields[fault % PLACES % len(fields)], fault // PLACES % CHOICES)
    encoded = changed.SerializeToString()
    for fault in faults:
        damage = fault // (PLACES * CHOICES) % DAMAGES
        encoded = _damaged(encoded, fault % PLACES, fault // PLACES % CHOICES, damage)
    return encoded


def faulty_message(message_count: int) -> st.SearchStrategy[tuple[int, list[int]]]:
    """Which of several messages, and one to three faults; most of them leave a message that can be decoded.

    A fault is one number, since drawing is what takes most of the time.
    """
    fault = st.integers(0, PLACES * CHOICES * DAMAGES - 1)
    return st.tuples(st.integers(0, message_count - 1), st.lists(fault, min_size=1, max_size=3))


def _fields(message: Message) -> Iterator[tuple[Any, Any]]:
    """Every field of a message and of the messages in it, with the message that holds it."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.message_type is not None:
            value = getattr(message, field.name)
            parts = value if field.is_repeated else [value] if message.HasField(field.name) else []
            for part in parts:
                yield from _fields(part)


def _set(holder: Any, field: Any, choice: int) -> None:
    if field.message_type is not None:
        holder.ClearField(field.name)
        if field.is_repeated:
            for _ in range(choice % 4):
                getattr(holder, field.name).add()
        elif choice % 2:
            getattr(holder, field.name).SetInParent()
        return
    values = VALUES_BY_TYPE[field.cpp_type]
    value = values[choice % len(values)]
    if not field.is_repeated:
        setattr(holder, field.name, value)
        return
    entries = getattr(holder, field.name)
    if choice % 3 == 0:
        entries.append(value)
    elif choice % 3 == 1:
        del entries[:]
        entries.extend([value] * (choice % 50))
    else:
        entries.extend([1] * (150_000 if choice % 100 == 2 else 10))


def _damaged(encoded: bytes, place: int, value: int, damage: int) -> bytes:
    at = place % (len(encoded) + 1)
    # Below 12 the bytes stay whole.
    if damage == 12:
        return encoded[:at]
    if damage == 13:
        return encoded[:at] + bytes([value % 256]) + encoded[at + 1 :]
    if damage == 14:
        return encoded[:at] + GARBAGE[value % len(GARBAGE)] + encoded[at:]
    return GARBAGE[value % len(GARBAGE)] if damage == 15 else encoded
