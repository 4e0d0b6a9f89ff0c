"""Typed look-ups in a model configuration, with errors that name the key."""

from __future__ import annotations

from typing import Any

from pymagpie.errors import ModelError

Section = dict[str, Any]


def section(config: Section, key: str) -> Section:
    """The mapping `key` of `config`; ModelError when it is missing or something else."""
    value = config.get(key)
    if not isinstance(value, dict):
        raise ModelError(f"the configuration has no section {key!r}")
    return value


def integer(config: Section, key: str, default: int | None = None) -> int:
    """The integer `key`; ModelError when it is of another type, or missing without a default."""
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(f"{key} must be an integer in the configuration, found {value!r}")
    return value


def number(config: Section, key: str, default: float) -> float:
    """The number `key` as a float; ModelError when it is no number."""
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ModelError(f"{key} must be a number in the configuration, found {value!r}")
    return float(value)


def boolean(config: Section, key: str, default: bool) -> bool:
    """The boolean `key`; ModelError when it is of another type."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise ModelError(f"{key} must be true or false in the configuration, found {value!r}")
    return value


def integers(config: Section, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """The list of integers `key`; ModelError when it is something else, or missing without a default."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, (list, tuple)) or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
        raise ModelError(f"{key} must be a list of integers in the configuration, found {value!r}")
    return tuple(value)


def require(config: Section, where: str, key: str, allowed: tuple[object, ...], default: object = None) -> Any:
    """The value of `key`, one of `allowed`; ModelError naming the key, its value and what is supported."""
    value = config.get(key)
    value = default if value is None else value
    if value not in allowed:
        raise ModelError(f"{where}{key} is {value!r}, supported: {', '.join(map(str, allowed))}")
    return value
