"""Packed inputs and results of the decoder graphs: everything a step needs goes up in two copies, and comes back in
one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..ggml import DTYPES, F32, I32, Backend, Buffer, Context, Tensor, ops

_ALIGN = 64  # elements: devices ask for views at multiples of up to 256 bytes


def aligned(count: int) -> int:
    """*count* elements rounded up to where the next segment may begin."""
    return -(-count // _ALIGN) * _ALIGN


class Pack:
    """One flat device tensor of named segments, and a host array of the same layout."""

    def __init__(self, context: Context, ggml_type: int, segments: Mapping[str, int], name: str) -> None:
        self._offsets: dict[str, tuple[int, int]] = {}
        end = 0
        for segment, count in segments.items():
            self._offsets[segment] = (end, count)
            end += aligned(count)
        self.host = np.zeros(end, DTYPES[ggml_type])
        self.tensor = context.new_tensor(ggml_type, (end,), name)

    def view(self, ctx: Context, segment: str, ne: Sequence[int] | None = None, offset: int = 0) -> Tensor:
        """The segment in a graph: [count], or *ne* elements from the *offset*-th on, contiguous."""
        start, count = self._offsets[segment]
        flat = ops.view(ctx, self.tensor, (count - offset if ne is None else int(np.prod(ne)),),
                        offset=(start + offset) * 4)
        return flat if ne is None or len(ne) == 1 else ops.reshape(ctx, flat, *ne)

    def __getitem__(self, segment: str) -> np.ndarray:
        """The host side of a segment, to be written to or read."""
        start, count = self._offsets[segment]
        return self.host[start:start + count]

    def upload(self) -> None:
        """One host-to-device copy of all segments."""
        self.tensor.set(self.host)

    def download(self) -> None:
        """One device-to-host copy of all segments."""
        self.tensor.get_into(self.host)


class StepIO:
    """The inputs of one graph (``ints`` and ``floats``) and its ``result``, in device memory that outlives computes."""

    def __init__(self, backend: Backend, ints: Mapping[str, int], floats: Mapping[str, int],
                 result: Mapping[str, int]) -> None:
        context = Context(3)
        self.ints = Pack(context, I32, ints, "ints")
        self.floats = Pack(context, F32, floats, "floats")
        self.result = Pack(context, F32, result, "result")
        self._buffer = Buffer(context, backend, "step inputs")

    def upload(self) -> None:
        self.ints.upload()
        self.floats.upload()

    def close(self) -> None:
        self._buffer.close()
