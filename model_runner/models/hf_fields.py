"""Reads fields of config.json; ModelConfigError names the field that is missing or wrong."""

import math
from typing import Any


class ModelConfigError(ValueError):
    """config.json lacks a field, contradicts itself, or asks for something that is not supported."""


def value_of(fields: dict[str, Any], name: str, default: Any) -> Any:
    """The field, or the default where it is missing or null; without a default it must be there."""
    value = fields.get(name)
    if value is None:
        value = default
    if value is None:
        raise ModelConfigError(f"config.json: {name} is missing")
    return value


def integer(fields: dict[str, Any], name: str, default: int | None = None) -> int:
    """An integer of at least 1."""
    value = value_of(fields, name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelConfigError(f"config.json: {name} must be an integer of at least 1, got {value!r}")
    return value


def positive(fields: dict[str, Any], name: str, default: float | None = None) -> float:
    """A positive finite number."""
    value = value_of(fields, name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 and math.isfinite(value)):
        raise ModelConfigError(f"config.json: {name} must be a positive number, got {value!r}")
    return float(value)


def flag(fields: dict[str, Any], name: str) -> bool:
    """True or false; missing is false."""
    value = value_of(fields, name, False)
    if not isinstance(value, bool):
        raise ModelConfigError(f"config.json: {name} must be true or false, got {value!r}")
    return value
