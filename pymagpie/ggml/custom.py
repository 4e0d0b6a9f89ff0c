"""Custom ops: nodes of a graph that a C function of ours computes. CPU only.

The function is called as ``function(dst, thread, threads, userdata)`` by every thread of the backend. It finds its
operands in the ``ggml_tensor`` that it gets, at the offsets of :func:`tensor_layout`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from ..errors import CapabilityError, ModelError
from .bindings import ggml, ggml_version
from .context import Context, Tensor, check_shape

KNOWN_VERSIONS = ("0.15.3",)
"""The ggml releases whose custom ops and tensor layout are known."""

FIELDS = ("ne", "nb", "src", "data")


def custom_4d(ctx: Context, ggml_type: int, ne: Sequence[int], sources: Sequence[Tensor | None], function: int,
              userdata: int, keep: Any = None) -> Tensor:
    """``ggml_custom_4d``: a new tensor of shape *ne*, computed by the C function at the address *function*.

    *sources* (None for one that is absent) are what it reads, *userdata* is an address passed to it; *keep* is held by
    the context, so that what *userdata* points to lives as long as the node.
    """
    check_shape(ggml_type, ne)
    dims = [*ne, 1, 1, 1][:4]
    return Tensor(ctx, ggml.ggml_custom_4d(ctx.take(), ggml_type, *dims, *_arguments(ctx, sources, function, keep, 9),
                                           ggml.GGML_N_TASKS_MAX, userdata))


def custom_inplace(ctx: Context, a: Tensor, sources: Sequence[Tensor | None], function: int, userdata: int,
                   keep: Any = None) -> Tensor:
    """``ggml_custom_inplace``: overwrites *a* and returns a view of it; *a* is source 0, *sources* follow."""
    return Tensor(ctx, ggml.ggml_custom_inplace(ctx.take(), a.pointer, *_arguments(ctx, sources, function, keep, 8),
                                                ggml.GGML_N_TASKS_MAX, userdata))


def _arguments(ctx: Context, sources: Sequence[Tensor | None], function: int, keep: Any, limit: int) -> tuple[Any, ...]:
    if len(sources) > limit:
        raise ModelError(f"a custom op takes at most {limit} sources, not {len(sources)}")
    pointers = (ctypes.POINTER(ggml.ggml_tensor) * len(sources))()
    for index, source in enumerate(sources):
        if source is not None:
            pointers[index] = source.pointer
    callback = ggml.ggml_custom_op_t(function)
    ctx.keep.append((keep, callback))
    return pointers, len(sources), callback


def on_cpu(tensor: Tensor) -> bool:
    """Whether *tensor* or what it views lies in the memory of the CPU backend, where custom ops can run."""
    contents = tensor.pointer.contents
    buffer = (contents.view_src.contents if contents.view_src else contents).buffer
    # This buffer type names no device.
    return bool(buffer) and ggml.ggml_backend_buft_name(ggml.ggml_backend_buffer_get_type(buffer)) == b"CPU"


@functools.cache
def tensor_layout() -> dict[str, int]:
    """The offset in bytes of each of :data:`FIELDS` in a ``ggml_tensor``.

    Taken from ggml-python's structure and checked against tensors that ggml made. Raises :class:`CapabilityError`
    when ggml is of an unknown version or lays its tensors out otherwise.
    """
    version = ggml_version()
    if version not in KNOWN_VERSIONS:
        raise CapabilityError(f"custom ops are known for ggml {', '.join(KNOWN_VERSIONS)}, this is ggml {version}")
    layout = {name: getattr(ggml.ggml_tensor, name).offset for name in FIELDS}
    size = 4096
    context = ggml.ggml_init(ggml.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=False))
    try:
        a = ggml.ggml_new_tensor_4d(context, ggml.GGML_TYPE_F32, 3, 5, 7, 2)
        node = ggml.ggml_add(context, a, a)
        own = ctypes.addressof(a.contents)
        found = {
            "ne": _read(a, layout["ne"], ctypes.c_int64, 4) == [3, 5, 7, 2],
            "nb": _read(a, layout["nb"], ctypes.c_size_t, 4) == [4, 12, 60, 420],
            "src": _read(node, layout["src"], ctypes.c_size_t, 3) == [own, own, 0],
            "data": _read(a, layout["data"], ctypes.c_size_t, 1) == [ggml.ggml_get_data(a)],
        }
    finally:
        ggml.ggml_free(context)
    wrong = [name for name, right in found.items() if not right]
    if wrong:
        raise CapabilityError(f"ggml {version} keeps {', '.join(wrong)} of a tensor elsewhere than ggml-python says")
    return layout


def _read(tensor: Any, offset: int, kind: Any, count: int) -> list[int]:
    return list((kind * count).from_address(ctypes.addressof(tensor.contents) + offset))
