"""Contexts, tensors and buffers: ggml's own three notions, with owners and bounds.

A :class:`Context` holds tensor descriptions and no data (``no_alloc``). A :class:`Buffer` gives every tensor of a
context its memory on a backend. A :class:`Tensor` is a light handle that dies with its context.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import BackendError, ModelError
from .backend import Backend
from .bindings import ggml

F32: int = ggml.GGML_TYPE_F32
F16: int = ggml.GGML_TYPE_F16
BF16: int = ggml.GGML_TYPE_BF16
Q8_0: int = ggml.GGML_TYPE_Q8_0
I32: int = ggml.GGML_TYPE_I32
I64: int = ggml.GGML_TYPE_I64

DTYPES: dict[int, np.dtype[Any]] = {
    F32: np.dtype(np.float32), F16: np.dtype(np.float16), I32: np.dtype(np.int32), I64: np.dtype(np.int64)}
"""The numpy dtype of each ggml type that has one."""

MAX_DIMS = 4


def type_name(ggml_type: int) -> str:
    """ggml's name of a type: ``f32``, ``q8_0`` ..."""
    return ggml.ggml_type_name(ggml_type).decode()


class Context:
    """Owns a ``ggml_context`` with room for a stated number of tensors.

    ggml aborts the process when a context is full, so room is counted here and running out is an exception.
    """

    def __init__(self, max_tensors: int, graph_size: int = 0) -> None:
        """Room for *max_tensors* tensors and, when *graph_size* is given, one graph of that many nodes."""
        if max_tensors < 1:
            raise ValueError(f"max_tensors must be at least 1, not {max_tensors}")
        size = max_tensors * ggml.ggml_tensor_overhead()
        if graph_size:
            size += ggml.ggml_graph_overhead_custom(graph_size, False)
        handle = ggml.ggml_init(ggml.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True))
        if not handle:
            raise BackendError(f"ggml could not create a context for {max_tensors} tensors")
        self._handle: Any = handle
        self._free_tensors = self.max_tensors = max_tensors
        self._finalizer = weakref.finalize(self, ggml.ggml_free, handle)
        self.keep: list[Any] = []
        """Python objects that the context's nodes point to (callbacks and parameters of custom ops)."""
        self.packs_operands = False
        """Whether a product of two matrices copies f32 operands whose rows do not follow each other: ggml's Vulkan
        backend would round them to f16."""

    @property
    def handle(self) -> Any:
        """ggml's pointer. Raises ``ValueError`` once the context is closed."""
        if self._handle is None:
            raise ValueError("the ggml context is closed")
        return self._handle

    @property
    def closed(self) -> bool:
        return self._handle is None

    def take(self) -> Any:
        """ggml's pointer, after counting one more tensor."""
        if self._free_tensors < 1:
            raise BackendError(f"the ggml context is full ({self.max_tensors} tensors)")
        self._free_tensors -= 1
        return self.handle

    @property
    def used(self) -> int:
        """How many tensors the context holds."""
        return self.max_tensors - self._free_tensors

    def new_tensor(self, ggml_type: int, ne: Sequence[int], name: str = "") -> Tensor:
        """A tensor of *ne* elements a dimension (ggml order: fastest first; numpy's shape is the reverse).

        Raises :class:`ModelError` for a zero, negative or overflowing shape, or a row that the type cannot hold.
        """
        check_shape(ggml_type, ne, name)
        sizes = (ctypes.c_int64 * len(ne))(*ne)
        tensor = Tensor(self, ggml.ggml_new_tensor(self.take(), ggml_type, len(ne), sizes))
        if name:
            tensor.set_name(name)
        return tensor

    def close(self) -> None:
        """Free the context; its tensors must not be used any more, and say so when they are."""
        if self._handle is not None:
            self._handle = None
            self._finalizer()
            self.keep.clear()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def check_shape(ggml_type: int, ne: Sequence[int], name: str = "") -> int:
    """The bytes of a tensor of this type and shape. Raises :class:`ModelError` for one that ggml cannot represent."""
    label = f"tensor {name!r}" if name else "tensor"
    if not 1 <= len(ne) <= MAX_DIMS:
        raise ModelError(f"{label} has {len(ne)} dimensions; 1 to {MAX_DIMS} are allowed")
    block = ggml.ggml_blck_size(ggml_type)
    if any(n < 1 for n in ne):
        raise ModelError(f"{label} has a dimension below 1: {list(ne)}")
    if ne[0] % block:
        raise ModelError(f"{label} has rows of {ne[0]}, not a multiple of {block} as {type_name(ggml_type)} needs")
    size = ggml.ggml_type_size(ggml_type) * (ne[0] // block)
    for n in ne[1:]:
        size *= n
    if size > 1 << 46:
        raise ModelError(f"{label} of shape {list(ne)} is impossibly large")
    return size


_copies = threading.local()


def host_copies() -> int:
    """How many copies between host and device the calling thread has made; only differences mean something."""
    return getattr(_copies, "count", 0)


def _count_copy() -> None:
    _copies.count = host_copies() + 1


class Tensor:
    """A handle on a ``ggml_tensor``; valid while its context is open."""

    __slots__ = ("context", "_pointer", "ne", "nb", "type")

    def __init__(self, context: Context, pointer: Any) -> None:
        if not pointer:
            raise BackendError("ggml returned no tensor")
        self.context = context
        self._pointer = pointer
        contents = pointer.contents
        self.ne: tuple[int, int, int, int] = tuple(contents.ne)
        """Elements a dimension, ggml order (fastest first), always four."""
        self.nb: tuple[int, int, int, int] = tuple(contents.nb)
        """Stride in bytes of each dimension."""
        self.type: int = contents.type

    @property
    def pointer(self) -> Any:
        """ggml's pointer. Raises ``ValueError`` once the context is closed."""
        if self.context.closed:
            raise ValueError("the tensor's ggml context is closed")
        return self._pointer

    @property
    def name(self) -> str:
        return self.pointer.contents.name.decode("utf-8", "replace")

    def set_name(self, name: str) -> Tensor:
        ggml.ggml_set_name(self.pointer, name.encode()[:63])
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """The numpy shape: *ne* reversed, without trailing dimensions of one."""
        dims = list(self.ne)
        while len(dims) > 1 and dims[-1] == 1:
            dims.pop()
        return tuple(reversed(dims))

    @property
    def elements(self) -> int:
        n0, n1, n2, n3 = self.ne
        return n0 * n1 * n2 * n3

    @property
    def nbytes(self) -> int:
        return ggml.ggml_nbytes(self.pointer)

    @property
    def contiguous(self) -> bool:
        return bool(ggml.ggml_is_contiguous(self.pointer))

    @property
    def allocated(self) -> bool:
        contents = self.pointer.contents
        source = contents.view_src.contents if contents.view_src else contents
        return bool(source.buffer)

    def set(self, data: np.ndarray, offset: int = 0) -> None:
        """Copy *data* to the device, starting at *offset* bytes: one host-to-device copy.

        The bytes are taken as they are, so the dtype must be the tensor's own. Raises ``ValueError`` when they do not
        fit or the tensor has no memory yet.
        """
        data = np.ascontiguousarray(data)
        expected = DTYPES.get(self.type)
        if expected is not None and data.dtype != expected and data.dtype != np.uint8:
            raise ValueError(f"tensor {self.name!r} is {type_name(self.type)}; the data is {data.dtype}")
        self._check_range(offset, data.nbytes)
        if data.nbytes:
            _count_copy()
            ggml.ggml_backend_tensor_set(self.pointer, data.ctypes.data, offset, data.nbytes)

    def get(self) -> np.ndarray:
        """Copy the tensor to the host: an array of :attr:`shape`, one device-to-host copy.

        Types without a numpy dtype (quantised ones) come as raw bytes, a flat uint8 array.
        """
        dtype = DTYPES.get(self.type)
        data = np.empty(self.nbytes, np.uint8) if dtype is None else np.empty(self.shape, dtype)
        self._check_range(0, data.nbytes)
        _count_copy()
        ggml.ggml_backend_tensor_get(self.pointer, data.ctypes.data, 0, data.nbytes)
        return data

    def get_into(self, out: np.ndarray) -> None:
        """Like :meth:`get`, into a contiguous array of the caller's that has exactly the tensor's bytes."""
        if out.nbytes != self.nbytes or not out.flags.c_contiguous:
            raise ValueError(f"tensor {self.name!r} has {self.nbytes} bytes; the array has {out.nbytes}")
        self._check_range(0, out.nbytes)
        _count_copy()
        ggml.ggml_backend_tensor_get(self.pointer, out.ctypes.data, 0, out.nbytes)

    def _check_range(self, offset: int, size: int) -> None:
        if not self.allocated:
            raise ValueError(f"tensor {self.name!r} has no memory yet")
        if not self.contiguous:
            raise ValueError(f"tensor {self.name!r} is not contiguous")
        if offset < 0 or offset + size > self.nbytes:
            raise ValueError(f"{size} bytes at offset {offset} do not fit tensor {self.name!r} of {self.nbytes} bytes")

    def __repr__(self) -> str:
        return "Tensor(closed)" if self.context.closed else f"Tensor({self.name!r}, {type_name(self.type)}, {self.ne})"


class Buffer:
    """Owns the backend memory of every tensor of one context."""

    def __init__(self, context: Context, backend: Backend, what: str = "the buffer") -> None:
        """Allocate. Raises :class:`BackendError` when *what* needs more than the device has free."""
        buffer_type = ggml.ggml_backend_get_default_buffer_type(backend.handle)
        size = ggml.ggml_backend_alloc_ctx_tensors_from_buft_size(context.handle, buffer_type)
        backend.require_memory(size, what)
        handle = ggml.ggml_backend_alloc_ctx_tensors(context.handle, backend.handle)
        if not handle:
            raise BackendError(f"{backend.device.name} could not allocate {size} bytes for {what}")
        self.context = context
        self.backend = backend
        self._handle: Any = handle
        self._finalizer = weakref.finalize(self, backend.free_memory, ggml.ggml_backend_buffer_free, handle)

    @property
    def handle(self) -> Any:
        """ggml's pointer. Raises ``ValueError`` once the buffer is closed."""
        if self._handle is None:
            raise ValueError("the buffer is closed")
        return self._handle

    @property
    def closed(self) -> bool:
        return self._handle is None

    @property
    def nbytes(self) -> int:
        return ggml.ggml_backend_buffer_get_size(self.handle)

    def clear(self) -> None:
        """Set every byte to zero, on the device."""
        ggml.ggml_backend_buffer_clear(self.handle, 0)

    def close(self) -> None:
        """Free the memory. The context goes with it, so that no tensor can point to what is gone."""
        if self._handle is not None:
            self._handle = None
            self.context.close()
            self._finalizer()

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
