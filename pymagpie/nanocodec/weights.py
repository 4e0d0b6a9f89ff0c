"""The decoder's weights: checked against the topology, then loaded into one backend buffer.

Convolution kernels become float32 matrices whatever the file holds: on a CPU that is twice as fast as f16, which ggml
would multiply through rounded activations. A transposed convolution is stored dense but is grouped in the published
models, two input channels to an output channel; such a kernel is found out here and kept compact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..errors import ModelError
from ..ggml import BF16, F16, F32, Q8_0, Backend, Buffer, Context, GGUFFile, Tensor, type_name
from .config import CodecConfig, ConvSpec, StageSpec

_KINDS = (F32, F16, Q8_0, BF16)

Array = np.ndarray


def check_tensors(config: CodecConfig, file: GGUFFile) -> None:
    """Raise :class:`ModelError` unless every tensor that *config* needs is in *file* with the right shape."""
    for name, ne in expected_tensors(config).items():
        info = file.info(name)
        if _trim(info.ne) != _trim(ne):
            raise ModelError(f"{file.path}: tensor {name!r} has shape {list(info.ne)}, expected {list(ne)}")
        if info.type not in _KINDS:
            raise ModelError(f"{file.path}: tensor {name!r} has type {type_name(info.type)}; "
                             "f32, f16, bf16 and q8_0 are supported")


def expected_tensors(config: CodecConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape (ggml order) of every tensor of the decoder."""
    expected: dict[str, tuple[int, ...]] = {}
    for conv in config.convs():
        expected[f"{conv.name}.w"] = (conv.kernel, conv.in_channels, conv.out_channels)
        expected[f"{conv.name}.b"] = (1, conv.out_channels)
    for stage in config.stages():
        expected[f"{stage.upsampler}.w"] = (2 * stage.rate, stage.out_channels, stage.in_channels)
        expected[f"{stage.upsampler}.b"] = (1, stage.out_channels)
    for name, channels in config.activations().items():
        expected[f"{name}.alpha"] = expected[f"{name}.alpha_inv"] = (1, channels // 2)
    return expected


def _trim(ne: tuple[int, ...]) -> tuple[int, ...]:
    dims = list(ne)
    while dims and dims[-1] == 1:
        dims.pop()
    return tuple(dims)


def read_f32(file: GGUFFile, name: str) -> Array:
    """The tensor as float32, without the dimension of one that biases and alphas carry in the file."""
    return np.ascontiguousarray(file.read(name), np.float32)


def half_snake_parameters(file: GGUFFile, name: str, channels: int) -> tuple[Array, Array]:
    """alpha and 1 / alpha, each float32 (channels,), zero on the leaky half so that a snake there adds nothing."""
    parameters = np.zeros((2, channels), np.float32)
    parameters[0, :channels // 2] = read_f32(file, f"{name}.alpha").ravel()
    parameters[1, :channels // 2] = read_f32(file, f"{name}.alpha_inv").ravel()
    return parameters[0], parameters[1]


def compact_kernel(dense: Array, rate: int) -> Array | None:
    """The grouped form of a transposed convolution's kernel, or None when it is really dense.

    *dense*: float32 (in_channels, out_channels, 2 * rate). When in_channels is a multiple e of out_channels and input
    ci feeds output ci // e alone, the result is float32 (out_channels, rate, 2 * e); entry [o, j] multiplies first the
    e inputs of the frame before, then those of the current one, to give sample j of output o's block of *rate*. (Of a
    kernel of 2 * rate taps, the current frame meets the first half and the frame before it the second.)
    """
    inputs, outputs, taps = dense.shape
    if inputs % outputs or taps != 2 * rate:
        return None
    group = inputs // outputs
    owner = np.arange(inputs) // group
    own = dense[np.arange(inputs), owner]
    if np.count_nonzero(dense) != np.count_nonzero(own):
        return None
    halves = own.reshape(outputs, group, 2, rate)  # [output, input of the group, half, sample]
    return np.ascontiguousarray(halves[:, :, ::-1].transpose(0, 3, 2, 1).reshape(outputs, rate, 2 * group))


# What to load: a tensor's name, its shape on the device (ggml order), and what reads its values.
_Load = tuple[str, tuple[int, ...], Callable[[], Array]]


class StockWeights:
    """The weights in the form that ggml's own operators take, in one buffer on *backend*."""

    def __init__(self, config: CodecConfig, file: GGUFFile, backend: Backend, dense: bool = False) -> None:
        """*dense* keeps every upsampler dense, to compare with the compact form.

        Raises :class:`ModelError` for tensors that are missing or misshapen and :class:`BackendError` when they do not
        fit the device.
        """
        check_tensors(config, file)
        self._tensors: dict[str, Tensor] = {}
        self.compact: set[int] = set()
        """Indices of the stages whose upsampler is grouped."""
        loads: list[_Load] = []
        for conv in config.convs():
            loads += self._conv(file, conv)
        for stage in config.stages():
            loads += self._upsampler(file, stage, dense)
        for name, channels in config.activations().items():
            alpha, inverse = half_snake_parameters(file, name, channels)
            loads += [(f"{name}.alpha", (1, channels), partial(np.asarray, alpha)),
                      (f"{name}.alpha_inv", (1, channels), partial(np.asarray, inverse))]
        context = Context(len(loads))
        try:
            for name, ne, _read in loads:
                self._tensors[name] = context.new_tensor(F32, ne, name)
            self.buffer = Buffer(context, backend, "the codec's weights")
        except BaseException:
            context.close()
            raise
        try:
            for name, _ne, read in loads:
                self._tensors[name].set(read())
        except BaseException:
            self.buffer.close()
            raise

    @staticmethod
    def _conv(file: GGUFFile, conv: ConvSpec) -> list[_Load]:
        kernel, bias = f"{conv.name}.w", f"{conv.name}.b"
        return [(kernel, (conv.kernel, conv.in_channels, conv.out_channels), partial(read_f32, file, kernel)),
                (bias, (1, conv.out_channels), partial(read_f32, file, bias))]

    def _upsampler(self, file: GGUFFile, stage: StageSpec, dense: bool) -> list[_Load]:
        name, bias = f"{stage.upsampler}.w", f"{stage.upsampler}.b"
        stored = read_f32(file, name).reshape(stage.in_channels, stage.out_channels, 2 * stage.rate)
        compact = None if dense else compact_kernel(stored, stage.rate)
        if compact is not None:
            self.compact.add(stage.index)
        kernel = stored if compact is None else compact
        return [(name, tuple(reversed(kernel.shape)), partial(np.asarray, kernel)),
                (bias, (1, stage.out_channels), partial(read_f32, file, bias))]

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    @property
    def closed(self) -> bool:
        return self.buffer.closed

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes

    def close(self) -> None:
        self.buffer.close()
