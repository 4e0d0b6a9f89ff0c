"""Writes a GGUF file whole or not at all.

A thin owner around :class:`gguf.GGUFWriter`: everything goes to a temporary file beside the target, which takes the
target's name when it is complete. Any failure leaves the target as it was.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pymagpie.errors import ModelError

Value = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]

Q8_0_BLOCK = 32
OUTTYPES = ("f16", "f32", "q8_0")
_F16_MAX = 65504.0


class GGUFOutput:
    """A GGUF file in the making; use it as a context manager.

    Leaving the block normally writes the file, leaving it by an exception writes nothing. Shapes are numpy order
    (row-major); ggml's ``ne`` is the reverse.
    """

    def __init__(self, path: str | os.PathLike[str], architecture: str) -> None:
        """`path` is the target, `architecture` the value of ``general.architecture``.

        Raises OSError when the target's directory does not exist or cannot be written, before any work is done.
        """
        from gguf import GGUFWriter

        self.path = Path(path)
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path}: is a directory, a file name is needed")
        self._tensors = 0
        self._temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.part")
        os.close(os.open(self._temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        self._writer = GGUFWriter(self._temporary, architecture)

    @property
    def tensor_count(self) -> int:
        return self._tensors

    def put(self, key: str, value: Value) -> None:
        """Add a metadata entry. int is written as int32 (int64 beyond that), float as float32, a sequence as an array.

        An empty sequence is left out: GGUF arrays carry the type of their first element.
        """
        from gguf import GGUFValueType

        writer = self._writer
        if isinstance(value, str):
            writer.add_key_value(key, value, GGUFValueType.STRING)  # add_string() leaves empty ones out
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            (writer.add_int32 if -(2**31) <= value < 2**31 else writer.add_int64)(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_array(key, list(value))

    def add(self, name: str, array: np.ndarray, outtype: str = "f32") -> None:
        """Add a tensor.

        Args:
            name: its name in the file.
            array: int32 (written as I32 whatever `outtype` says) or float32, numpy order.
            outtype: ``f32``, ``f16`` or ``q8_0``; a tensor whose rows are no multiple of 32 is written as f16
                instead of q8_0.

        Raises:
            ModelError: a value is not finite, or does not fit into f16.
        """
        import gguf

        array = np.ascontiguousarray(array)  # at least 1-d: GGUF has no scalars
        self._tensors += 1
        if array.dtype == np.int32:
            self._writer.add_tensor(name, array)
            return
        if array.dtype != np.float32 or outtype not in OUTTYPES:
            raise ValueError(f"tensor {name!r}: {array.dtype} as {outtype!r}; allowed are float32 and {OUTTYPES}")
        largest = float(np.abs(array).max(initial=0.0))
        if not np.isfinite(largest):
            raise ModelError(f"tensor {name!r} holds NaN or infinity")
        quantized = outtype == "q8_0" and array.shape[-1] % Q8_0_BLOCK == 0
        # A q8_0 block stores its largest value over 127 as f16.
        if outtype != "f32" and largest > _F16_MAX * (127 if quantized else 1):
            raise ModelError(f"tensor {name!r} holds {largest:g}, which {outtype} cannot; use outtype f32")
        if quantized:
            kind = gguf.GGMLQuantizationType.Q8_0
            self._writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            self._writer.add_tensor(name, array if outtype == "f32" else array.astype(np.float16))

    def finish(self) -> None:
        """Write the file and give it its name."""
        writer = self._writer
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(self._temporary, self.path)

    def discard(self) -> None:
        """Remove what was written so far."""
        self._writer.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> GGUFOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None:
            self.discard()
            return
        try:
            self.finish()
        except BaseException:
            self.discard()
            raise
