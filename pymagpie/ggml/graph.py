"""The owner of one compute graph: a context for its nodes, the ``ggml_cgraph``, and the allocator of its memory."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import BackendError, ModelError
from .backend import Backend
from .bindings import ggml
from .context import Context, Tensor, type_name
from .limits import broken_limit

_MAX_LEAFS = 4096  # weights, caches and inputs that one graph may read


class Graph:
    """Build, allocate, set, compute, get: ggml's life cycle of a graph, in one object.

    Nodes are made with :mod:`pymagpie.ggml.ops` in :attr:`context` and ordered by :meth:`expand`: they run in the order
    in which they were expanded. Once :meth:`allocate` has returned the graph never changes, so it can be computed any
    number of times and CUDA may capture it.
    """

    def __init__(self, backend: Backend, max_nodes: int, name: str = "graph") -> None:
        self.backend = backend
        self.name = name
        size = max_nodes + _MAX_LEAFS
        self.context = Context(max_nodes, graph_size=size)
        self.context.packs_operands = backend.device.family == "vulkan"
        self._graph: Any = ggml.ggml_new_graph_custom(self.context.handle, size, False)
        self._allocator: Any = None
        self._finalizer: weakref.finalize | None = None

    @property
    def closed(self) -> bool:
        return self.context.closed

    @property
    def allocated(self) -> bool:
        return self._allocator is not None

    def input(self, ggml_type: int, ne: Sequence[int], name: str) -> Tensor:
        """A tensor that the caller sets before each compute.

        ggml may reuse an input's memory after its last reader, so every input must be set again before each compute.
        """
        tensor = self.context.new_tensor(ggml_type, ne, name)
        ggml.ggml_set_input(tensor.pointer)
        return tensor

    def output(self, tensor: Tensor, name: str = "") -> Tensor:
        """Expand *tensor* into the graph and keep its memory until the next compute, so that it can be read."""
        if name:
            tensor.set_name(name)
        ggml.ggml_set_output(tensor.pointer)
        self.expand(tensor)
        return tensor

    def expand(self, tensor: Tensor) -> None:
        """Append *tensor*, and whatever it needs that is not in the graph yet."""
        if self.allocated:
            raise ValueError(f"{self.name} is allocated; nothing can be added to it")
        ggml.ggml_build_forward_expand(self._pointer, tensor.pointer)

    @property
    def _pointer(self) -> Any:
        if self.closed:
            raise ValueError(f"{self.name} is closed")
        return self._graph

    def nodes(self) -> Iterator[Any]:
        """The nodes as raw ``ggml_tensor`` pointers, in the order in which they run."""
        graph = self._pointer
        for index in range(ggml.ggml_graph_n_nodes(graph)):
            yield ggml.ggml_graph_node(graph, index)

    @property
    def node_count(self) -> int:
        return ggml.ggml_graph_n_nodes(self._pointer)

    def unsupported(self) -> list[str]:
        """What the backend cannot run: one line for each such node, naming op, node and types."""
        if self.backend.device.is_cpu:
            return []  # its answer is always yes; ops.py has refused what it cannot do
        problems = []
        for node in self.nodes():
            reason = broken_limit(self.backend, node) if self.backend.supports_op(node) else ""
            if reason is not None:
                problems.append(f"{describe(node)} is not supported by {self.backend.device.name}"
                                + (f": {reason}" if reason else ""))
        return problems

    def allocate(self) -> None:
        """Ask the backend about every node, then give the graph its memory.

        Raises :class:`ModelError` for an op that the device lacks, and :class:`BackendError` when the memory needed is
        more than the device has free; neither leaves anything behind.
        """
        if self.allocated:
            raise ValueError(f"{self.name} is already allocated")
        problems = self.unsupported()
        if problems:
            raise ModelError("; ".join(problems[:3]) + (f" (and {len(problems) - 3} more)" if problems[3:] else ""))
        buffer_type = ggml.ggml_backend_get_default_buffer_type(self.backend.handle)
        allocator = ggml.ggml_gallocr_new(buffer_type)
        finalizer = weakref.finalize(self, self.backend.free_memory, ggml.ggml_gallocr_free, allocator)
        try:
            size = ctypes.c_size_t()
            ggml.ggml_gallocr_reserve_n_size(allocator, self._pointer, None, None, ctypes.byref(size))
            self.backend.require_memory(size.value, f"the compute buffer of {self.name}")
            # Measuring leaves the allocator with a plan and no memory, which alloc_graph alone would not notice.
            if not (ggml.ggml_gallocr_reserve(allocator, self._pointer)
                    and ggml.ggml_gallocr_alloc_graph(allocator, self._pointer)):
                raise BackendError(f"{self.backend.device.name} could not allocate {size.value} bytes for {self.name}")
        except BaseException:
            finalizer()
            raise
        self._allocator, self._finalizer = allocator, finalizer

    @property
    def compute_bytes(self) -> int:
        """Bytes of the compute buffer."""
        return ggml.ggml_gallocr_get_buffer_size(self._allocator, 0) if self.allocated else 0

    def compute(self) -> None:
        """Run every node and wait. Raises :class:`BackendError` when ggml reports a failure."""
        if not self.allocated or self.closed:
            raise ValueError(f"{self.name} is {'closed' if self.closed else 'not allocated'}")
        status = ggml.ggml_backend_graph_compute(self.backend.handle, self._graph)
        if status != ggml.GGML_STATUS_SUCCESS:
            raise BackendError(f"{self.name} failed on {self.backend.device.name} (ggml status {status})")

    def close(self) -> None:
        """Free the nodes and their memory."""
        if not self.closed:
            self.context.close()
            if self._finalizer is not None:
                self._finalizer()
            self._allocator = None

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def describe(node: Any) -> str:
    """``MUL_MAT 'name' (f16 x f32 -> f32)`` for an error message."""
    contents = node.contents
    op = ggml.ggml_op_desc(node).decode()
    sources = [type_name(source.contents.type) for source in contents.src if source]
    return f"{op} {contents.name.decode('utf-8', 'replace')!r} ({' x '.join(sources)} -> {type_name(contents.type)})"
