"""Typed access to a model's metadata: a missing key or a value outside its range is one clear :class:`ModelError`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .errors import ModelError

_REQUIRED: Any = object()


class Metadata:
    """The metadata of one GGUF file, read through getters that check type and range."""

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        """*source* names the file in messages; *prefix* is put before every key."""
        self.values, self.source, self.prefix = values, source, prefix

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(self.prefix + key, default)
        if value is _REQUIRED:
            raise ModelError(f"{self.source}: metadata key {self.prefix + key!r} is missing")
        return value

    def _fail(self, key: str, value: Any, allowed: str) -> ModelError:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return ModelError(f"{self.source}: {self.prefix + key} is {shown}; it must be {allowed}")

    def integer(self, key: str, low: int, high: int, default: Any = _REQUIRED) -> int:
        """A whole number from *low* to *high*."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._fail(key, value, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, default: Any = _REQUIRED) -> float:
        """A finite number from *low* to *high*."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) \
                or not low <= value <= high:
            raise self._fail(key, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def integers(self, key: str, low: int, high: int, *, max_length: int, default: Any = _REQUIRED,
                 min_length: int = 1) -> tuple[int, ...]:
        """A list of *min_length* to *max_length* whole numbers from *low* to *high*."""
        value = self._get(key, default)
        if not isinstance(value, (list, tuple)) or not min_length <= len(value) <= max_length \
                or any(isinstance(v, bool) or not isinstance(v, int) or not low <= v <= high for v in value):
            raise self._fail(key, value, f"{min_length} to {max_length} whole numbers from {low} to {high}")
        return tuple(value)

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._fail(key, value, "a string")
        return value

    def flag(self, key: str, default: Any = _REQUIRED) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._fail(key, value, "true or false")
        return value
