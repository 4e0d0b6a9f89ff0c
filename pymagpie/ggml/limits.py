"""Limits of backends that their answer to ``supports_op`` leaves out, and that they assert when a graph runs."""

from __future__ import annotations

from typing import Any

from .backend import Backend
from .bindings import ggml

# On Vulkan these reach a view at any byte; every other op needs its operands where a storage buffer may be bound.
_ANY_OFFSET = frozenset(getattr(ggml, f"GGML_OP_{name}") for name in (
    "NONE", "VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE", "ADD", "SUB", "MUL", "DIV", "ACC", "CONCAT", "CPY", "CONT",
    "DUP", "SCALE", "SQR", "SQRT", "SIN", "COS", "CLAMP", "REPEAT", "UNARY", "LEAKY_RELU", "NORM", "PAD", "SUM_ROWS",
    "SET_ROWS"))


def broken_limit(backend: Backend, node: Any) -> str | None:
    """What keeps *node* (a raw tensor pointer) from running on *backend* although it claims support; None if nothing
    does."""
    if backend.device.family != "vulkan" or node.contents.op in _ANY_OFFSET:
        return None
    alignment = backend.alignment
    for tensor in (node, *(source for source in node.contents.src if source)):
        offset = tensor.contents.view_offs
        if offset % alignment:
            return f"an operand starts at byte {offset} of its memory, not at a multiple of {alignment}"
    return None
