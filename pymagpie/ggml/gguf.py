"""GGUF files, checked whole before ggml or numpy touches a byte of their data.

ggml's own loader aborts on an empty key, divides by zero on a zero dimension and accepts truncated data, so it is not
used: the header is walked here with explicit bounds, using the constants of the ``gguf`` package, and tensor data are
read from a memory map. The layout is that of GGUF versions 2 and 3, little-endian.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from ..errors import ModelError, ModelNotFoundError
from .context import BF16, DTYPES, F32, MAX_DIMS, Tensor, type_name

_MAX_TENSORS = 65_536
_MAX_KEYS = 65_536
_MAX_STRING = 16 << 20
_MAX_ARRAY = 16 << 20
_MAX_NAME = 63  # ggml keeps 64 bytes, the last of them zero
_MAX_BYTES = 1 << 46

_SCALARS = {
    GGUFValueType.UINT8: "B", GGUFValueType.INT8: "b", GGUFValueType.UINT16: "H", GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I", GGUFValueType.INT32: "i", GGUFValueType.UINT64: "Q", GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT32: "f", GGUFValueType.FLOAT64: "d", GGUFValueType.BOOL: "?"}


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies in the file, and what it is."""

    name: str
    ne: tuple[int, ...]
    """Elements a dimension, ggml order."""
    type: int
    """The ggml type."""
    offset: int
    """Bytes from the start of the file."""
    nbytes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The numpy shape: *ne* reversed."""
        return tuple(reversed(self.ne))


class _Reader:
    """A cursor over the file that cannot leave it."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.position = data, path, 0

    def fail(self, problem: str) -> ModelError:
        return ModelError(f"{self.path}: {problem} (at byte {self.position})")

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.data):
            raise self.fail("the file ends inside its header")
        chunk = self.data[self.position:end]
        self.position = end
        return chunk

    def unpack(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(code)))[0]

    def string(self, limit: int = _MAX_STRING) -> str:
        size = self.unpack("Q")
        if size > limit:
            raise self.fail(f"a string of {size} bytes; at most {limit} are allowed")
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise self.fail("a string is not UTF-8") from error

    def value(self, kind: int | None = None) -> Any:
        code = self.unpack("I") if kind is None else kind
        if code == GGUFValueType.STRING:
            return self.string()
        if code == GGUFValueType.ARRAY:
            if kind is not None:
                raise self.fail("nested arrays are not supported")
            return self.array()
        if code not in _SCALARS:
            raise self.fail(f"unknown value type {code}")
        return self.unpack(_SCALARS[GGUFValueType(code)])

    def array(self) -> list[Any]:
        kind, count = self.unpack("I"), self.unpack("Q")
        if count > _MAX_ARRAY:
            raise self.fail(f"an array of {count} elements; at most {_MAX_ARRAY} are allowed")
        if kind in _SCALARS:
            code = _SCALARS[GGUFValueType(kind)]
            return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(code))))
        if count * 8 > len(self.data) - self.position:
            raise self.fail(f"an array of {count} strings is longer than the file")
        return [self.value(kind) for _ in range(count)]


class GGUFFile:
    """A validated GGUF file, memory-mapped for reading. Close it when its tensors are loaded."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self._map: mmap.mmap | None = data
        self.metadata: dict[str, Any] = {}
        """Every key with its value: str, int, float, bool, or a list of these."""
        self.tensors: dict[str, TensorInfo] = {}
        """Every tensor by its name."""
        self._parse(_Reader(data, path))

    @classmethod
    def open(cls, path: str | Path) -> GGUFFile:
        """Map *path* and check all of it but the tensors' values.

        Raises :class:`ModelNotFoundError` when there is no such file and :class:`ModelError` when it is no usable GGUF.
        """
        path = Path(path)
        try:
            if not path.is_file():
                raise ModelNotFoundError(f"model file {path} does not exist" if not path.exists()
                                         else f"{path} is not a file")
            with path.open("rb") as file:
                if path.stat().st_size < 24:
                    raise ModelError(f"{path}: not a GGUF file (only {path.stat().st_size} bytes)")
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            if isinstance(error, ModelNotFoundError):
                raise
            raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
        try:
            return cls(path, data)
        except BaseException:
            data.close()
            raise

    def _parse(self, reader: _Reader) -> None:
        if (magic := reader.take(4)) != b"GGUF":
            raise ModelError(f"{self.path}: not a GGUF file (it starts with {magic!r})")
        self.version = reader.unpack("I")
        if self.version not in (2, 3):
            raise reader.fail(f"GGUF version {self.version} is not supported; 2 and 3 are")
        tensor_count, key_count = reader.unpack("Q"), reader.unpack("Q")
        if tensor_count > _MAX_TENSORS or key_count > _MAX_KEYS:
            raise reader.fail(f"{tensor_count} tensors and {key_count} keys; at most {_MAX_TENSORS} and {_MAX_KEYS} "
                              "are allowed")
        for _ in range(key_count):
            key = reader.string(65_535)
            if not key:
                raise reader.fail("an empty metadata key")
            if key in self.metadata:
                raise reader.fail(f"metadata key {key!r} appears twice")
            self.metadata[key] = reader.value()
        self.alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(self.alignment, int) or not 8 <= self.alignment <= 1 << 20 \
                or self.alignment & (self.alignment - 1):
            raise reader.fail(f"general.alignment is {self.alignment!r}; it must be a power of two from 8")
        headers = [self._tensor_header(reader) for _ in range(tensor_count)]
        start = -(-reader.position // self.alignment) * self.alignment
        for name, ne, ggml_type, offset, nbytes in headers:
            if name in self.tensors:
                raise ModelError(f"{self.path}: tensor {name!r} appears twice")
            if offset % self.alignment or start + offset + nbytes > len(reader.data):
                raise ModelError(f"{self.path}: tensor {name!r} lies outside the file (truncated?)")
            self.tensors[name] = TensorInfo(name, ne, ggml_type, start + offset, nbytes)

    @staticmethod
    def _tensor_header(reader: _Reader) -> tuple[str, tuple[int, ...], int, int, int]:
        name = reader.string(65_535)
        if not name or len(name.encode()) > _MAX_NAME or "\0" in name:
            raise reader.fail(f"tensor name {name[:80]!r} must have 1 to {_MAX_NAME} bytes")
        dims = reader.unpack("I")
        if dims > MAX_DIMS:
            raise reader.fail(f"tensor {name!r} has {dims} dimensions; at most {MAX_DIMS} are allowed")
        ne = tuple(reader.unpack("Q") for _ in range(dims)) or (1,)  # a scalar is written with none
        code, offset = reader.unpack("I"), reader.unpack("Q")
        try:
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(code)]
        except (ValueError, KeyError) as error:
            raise reader.fail(f"tensor {name!r} has the unknown type {code}") from error
        count = 1
        for n in ne:
            count *= n
        if count == 0 or ne[0] % block:
            raise reader.fail(f"tensor {name!r} has the impossible shape {list(ne)}")
        nbytes = count // block * block_bytes
        if nbytes > _MAX_BYTES:
            raise reader.fail(f"tensor {name!r} of shape {list(ne)} is impossibly large")
        return name, ne, code, offset, nbytes

    @property
    def _data(self) -> mmap.mmap:
        if self._map is None:
            raise ValueError(f"{self.path} is closed")
        return self._map

    def info(self, name: str) -> TensorInfo:
        """Raises :class:`ModelError` when the file has no such tensor."""
        try:
            return self.tensors[name]
        except KeyError:
            raise ModelError(f"{self.path}: tensor {name!r} is missing") from None

    def raw(self, name: str) -> np.ndarray:
        """The tensor's bytes as a fresh uint8 array."""
        info = self.info(name)
        return np.frombuffer(self._data[info.offset:info.offset + info.nbytes], np.uint8)

    def read(self, name: str) -> np.ndarray:
        """The tensor as an array of its numpy shape: f32, f16, i32 and i64 as they are, other types as float32."""
        info = self.info(name)
        data = self.raw(name)
        if info.type in DTYPES:
            return data.view(DTYPES[info.type]).reshape(info.shape)
        if info.type == BF16:
            return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(info.shape)
        from gguf.quants import dequantize
        try:
            return dequantize(data, GGMLQuantizationType(info.type)).astype(np.float32).reshape(info.shape)
        except NotImplementedError as error:
            raise ModelError(f"{self.path}: tensor {name!r} has type {type_name(info.type)}, "
                             "which cannot be converted") from error

    def load(self, name: str, tensor: Tensor) -> None:
        """Copy the tensor *name* into *tensor*, converting to f32 or f16 where the types differ.

        Raises :class:`ModelError` when the sizes disagree.
        """
        info = self.info(name)
        if int(np.prod(info.ne)) != tensor.elements:
            raise ModelError(f"{self.path}: tensor {name!r} has shape {list(info.ne)}, expected {list(tensor.ne)}")
        if info.type == tensor.type:
            tensor.set(self.raw(name))
        else:
            tensor.set(self.read(name).astype(DTYPES.get(tensor.type, DTYPES[F32])))

    def digest(self) -> str:
        """The sha256 of the whole file, in hex."""
        digest = hashlib.sha256()
        for block in self._blocks():
            digest.update(block)
        return digest.hexdigest()

    def _blocks(self, size: int = 8 << 20) -> Iterator[bytes]:
        for start in range(0, len(self._data), size):
            yield self._data[start:start + size]

    def close(self) -> None:
        """Unmap the file. Arrays read from it stay valid: they are copies."""
        if self._map is not None:
            self._map.close()
            self._map = None

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
