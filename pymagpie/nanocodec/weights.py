"""The decoder's weights: checked against the topology, then loaded into one backend buffer.

Convolution kernels become float32 whatever the file holds. With f16 kernels ggml would round the activations too, and
it is no faster: on a CPU it takes twice as long for these shapes, on an H200 a tenth more. The joined kernels of short
chunks are another matter: there f16 halves the time on an H200. A transposed convolution is
stored dense but is grouped in the published models, two input channels to an output channel; such a kernel is found out
here and kept compact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..errors import ModelError
from ..ggml import BF16, DTYPES, F16, F32, Q8_0, Backend, Buffer, Context, GGUFFile, Tensor, type_name
from .config import CodecConfig, StageSpec

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


@dataclass(frozen=True)
class _Load:
    """A tensor to be: its name, its shape (ggml order), what reads its values, and its type."""

    name: str
    ne: tuple[int, ...]
    read: Callable[[], Array]
    type: int = F32


class StockWeights:
    """The weights in the form that ggml's own operators take, in one buffer on *backend*."""

    def __init__(self, config: CodecConfig, file: GGUFFile, backend: Backend, dense: bool = False,
                 joined_type: int | None = None, channel_multiple: int = 1) -> None:
        """*dense* keeps every upsampler dense, to compare with the compact form; *joined_type* adds the
        residual stacks' weights joined, with kernels of that type (see :func:`joined_name`); channels are filled up
        with zeros to a multiple of *channel_multiple*.

        Raises :class:`ModelError` for tensors that are missing or misshapen and :class:`BackendError` when they do not
        fit the device.
        """
        check_tensors(config, file)
        self._file, self._joined_type = file, F32 if joined_type is None else joined_type
        self._channel_multiple = channel_multiple
        self._tensors: dict[str, Tensor] = {}
        self.compact: set[int] = set()
        """Indices of the stages whose upsampler is grouped."""
        self.snakes: dict[str, int] = {}
        """Channels of each half-snake that are snakes; the others are leaky."""
        loads: list[_Load] = []
        for conv in config.convs():
            outputs = conv.out_channels if conv == config.post else self.padded(conv.out_channels)
            loads += [_Load(f"{conv.name}.w", (conv.kernel, self.padded(conv.in_channels), outputs),
                            partial(read_f32, file, f"{conv.name}.w")), self._bias(conv.name, outputs)]
        for stage in config.stages():
            loads += self._upsampler(stage, dense)
            loads += self._joined(stage) if joined_type is not None else []
        for name, channels in config.activations().items():
            loads += self._half_snake(name, half_snake_parameters(file, name, channels), channels)
        self._load(loads, backend)

    def padded(self, channels: int) -> int:
        """*channels* with those of zeros that fill them up."""
        return -(-channels // self._channel_multiple) * self._channel_multiple

    def _load(self, loads: list[_Load], backend: Backend) -> None:
        context = Context(len(loads))
        try:
            for load in loads:
                self._tensors[load.name] = context.new_tensor(load.type, load.ne, load.name)
            self.buffer = Buffer(context, backend, "the codec's weights")
        except BaseException:
            context.close()
            raise
        try:
            for load in loads:
                self._tensors[load.name].set(_filled(load.read(), load.ne).astype(DTYPES[load.type], copy=False))
        except BaseException:
            self.buffer.close()
            raise

    def _bias(self, name: str, channels: int) -> _Load:
        return _Load(f"{name}.b", (1, channels), lambda: read_f32(self._file, f"{name}.b").reshape(-1, 1))

    def _half_snake(self, name: str, parameters: tuple[Array, Array], channels: int, stacks: int = 1) -> list[_Load]:
        self.snakes[name] = channels // 2
        return [_Load(f"{name}.{part}", (1, stacks * self.padded(channels)), partial(np.asarray, values))
                for part, values in zip(("alpha", "alpha_inv"), parameters, strict=True)]

    def _upsampler(self, stage: StageSpec, dense: bool) -> list[_Load]:
        name = f"{stage.upsampler}.w"
        stored = read_f32(self._file, name).reshape(stage.in_channels, stage.out_channels, 2 * stage.rate)
        compact = None if dense else compact_kernel(stored, stage.rate)
        if compact is not None:
            self.compact.add(stage.index)
        outputs = self.padded(stage.out_channels)
        if compact is None:
            return [_Load(name, (2 * stage.rate, outputs, self.padded(stage.in_channels)), partial(np.asarray, stored)),
                    self._bias(stage.upsampler, outputs)]
        loads = [_Load(name, tuple(reversed(compact.shape)), partial(np.asarray, compact)),
                 self._bias(stage.upsampler, stage.out_channels)]
        if missing := outputs - stage.out_channels:
            loads.append(_Load(f"{stage.upsampler}.fill", (1, missing), partial(np.zeros, (missing, 1), np.float32)))
        return loads

    def _joined(self, stage: StageSpec) -> list[_Load]:
        loads = []
        stacks, channels, padded = len(stage.stacks), stage.out_channels, self.padded(stage.out_channels)
        for blocks in zip(*stage.stacks, strict=True):
            for convs in ([block.input_conv for block in blocks], [block.skip_conv for block in blocks]):
                taps = max(conv.kernel for conv in convs)
                name = joined_name(convs[0].name)
                loads += [_Load(f"{name}.w", (taps, padded, padded, stacks),
                                partial(self._join_kernels, [conv.name for conv in convs], taps), self._joined_type),
                          _Load(f"{name}.b", (1, stacks, padded),
                                partial(self._interleave, [f"{conv.name}.b" for conv in convs]))]
            for names in ([block.input_activation for block in blocks], [block.skip_activation for block in blocks]):
                pairs = [half_snake_parameters(self._file, name, channels) for name in names]
                alpha, inverse = (np.stack(values, axis=1).ravel() for values in zip(*pairs, strict=True))
                loads += self._half_snake(joined_name(names[0]), (alpha, inverse), channels, stacks)
        return loads

    def _join_kernels(self, names: list[str], taps: int) -> Array:
        kernels = [read_f32(self._file, f"{name}.w") for name in names]
        return np.stack([np.pad(kernel, ((0, 0), (0, 0), (taps - kernel.shape[2], 0))) for kernel in kernels])

    def _interleave(self, names: list[str]) -> Array:
        return np.stack([read_f32(self._file, name).ravel() for name in names], axis=1)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def get(self, name: str) -> Tensor | None:
        return self._tensors.get(name)

    @property
    def closed(self) -> bool:
        return self.buffer.closed

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes

    def close(self) -> None:
        self.buffer.close()


def _filled(values: Array, ne: tuple[int, ...]) -> Array:
    """*values* with zeros behind them in every dimension that is shorter than *ne* (ggml order) says."""
    values = values.reshape(*values.shape, *(1,) * (len(ne) - values.ndim))
    return np.pad(values, [(0, n - have) for n, have in zip(reversed(ne), values.shape, strict=True)])


def joined_name(name: str) -> str:
    """The name of what the stacks of a stage share, from the first stack's: ``dec.res.1.0.2.ic`` -> ``dec.res.1.2.ic``.

    Joined kernels are [taps, C, C, n] for n stacks, the shorter ones behind zero taps, which look further back; biases
    and half-snakes have the stack before the channel: [1, n, C].
    """
    head, stage, _stack, block, part = name.rsplit(".", 4)
    return f"{head}.{stage}.{block}.{part}"
