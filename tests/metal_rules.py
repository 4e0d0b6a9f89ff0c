"""What ggml 0.15.3's Metal backend can run, as rules on one node: Metal itself exists on Apple's systems only.

The rules are those of ``ggml_metal_device_supports_op`` for a GPU of the M series without bfloat16, for the ops that
we use or might; an op that is not listed is unsupported. Two are stricter. No PAD: Metal's pads on the right alone. And
the matrix product's tile of 32 on GPUs with tensor units has no remainder: other row lengths give NaN there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymagpie.ggml import F16, F32, I32, I64, Q8_0
from pymagpie.ggml.bindings import ggml

TILE = 32
_MATRIX_FROM = 64  # shorter rows, and products of at most 8 columns, take Metal's vector kernels
_VECTOR_COLUMNS = 8

Rule = Callable[[Any, list[Any]], bool]


def rows_contiguous(tensor: Any) -> bool:
    return tensor.nb[0] == ggml.ggml_type_size(tensor.type)


def contiguous(tensor: Any) -> bool:
    size = ggml.ggml_type_size(tensor.type)
    for n, stride in zip(tensor.ne, tensor.nb, strict=True):
        if n > 1 and stride != size:
            return False
        size *= n
    return True


def _always(node: Any, sources: list[Any]) -> bool:
    return True


def _unary(node: Any, sources: list[Any]) -> bool:
    return rows_contiguous(sources[0]) and sources[0].type in (F32, F16)


def _rows(node: Any, sources: list[Any]) -> bool:
    return rows_contiguous(sources[0])


def _binary(node: Any, sources: list[Any]) -> bool:
    return all(map(rows_contiguous, sources[:2])) and sources[0].type == F32


def _concat(node: Any, sources: list[Any]) -> bool:
    return sources[0].type == sources[1].type == node.type and node.type in (F32, F16, I32, I64)


def _im2col(node: Any, sources: list[Any]) -> bool:
    return contiguous(sources[1]) and sources[1].type == F32 and node.type in (F16, F32)


def _copy(node: Any, sources: list[Any]) -> bool:
    return node.type in {F32: (F32, F16, Q8_0, I32), F16: (F32, F16), I32: (F32, I32)}.get(sources[0].type, ())


def _set_rows(node: Any, sources: list[Any]) -> bool:
    return sources[0].type == F32 and node.type in (F32, F16, Q8_0)


def _mul_mat(node: Any, sources: list[Any]) -> bool:
    a, b = sources
    by_vector = a.ne[0] < _MATRIX_FROM or b.ne[1] <= _VECTOR_COLUMNS
    return b.type in (F32, F16) and (by_vector or a.ne[0] % TILE == 0)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("NONE", "RESHAPE", "VIEW", "TRANSPOSE", "PERMUTE", "REPEAT", "CONV_TRANSPOSE_1D", "ARGMAX",
                     "ARGSORT", "TOP_K", "GET_ROWS"), _always),
    **dict.fromkeys(("SCALE", "CLAMP", "SQR", "SQRT", "SIN", "COS", "LOG", "TANH", "RELU", "SIGMOID", "GELU", "SILU",
                     "NEG", "ABS", "SGN", "STEP", "EXP"), _unary),
    **dict.fromkeys(("ADD", "SUB", "MUL", "DIV", "ACC"), _binary),
    **dict.fromkeys(("SUM_ROWS", "SOFT_MAX", "NORM"), _rows),
    **dict.fromkeys(("CPY", "DUP", "CONT"), _copy),
    "LEAKY_RELU": lambda node, sources: sources[0].type == F32,
    "CONCAT": _concat, "IM2COL": _im2col, "SET_ROWS": _set_rows, "MUL_MAT": _mul_mat,
}


def supports(node: Any) -> bool:
    """Whether Metal runs *node*, a raw tensor pointer."""
    rule = RULES.get(ggml.ggml_op_desc(node).decode())
    sources = [source.contents for source in node.contents.src if source]
    return rule is not None and rule(node.contents, sources)
