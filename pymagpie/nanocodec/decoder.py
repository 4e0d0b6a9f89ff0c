"""Builds the decoder's graph. The offline and the streamed decode share it: offline is a stream of one long chunk.

A :class:`Decoder` is one way of computing the layers on one backend, with its weights: :class:`StockDecoder` from
ggml's operators, which every backend has, and the native kernels' one on CPUs. :func:`select_decoder` chooses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from ..ggml import F32, Backend, GGUFFile, Graph, Tensor, ops
from . import layers
from .config import BlockSpec, CacheSpec, CodecConfig, ConvSpec, StageSpec
from .weights import StockWeights

KERNELS = ("auto", "native", "batched", "stock", "dense")
"""What ``NanoCodec.load(kernels=...)`` takes: the best for the device; our native CPU kernels; ggml's own operators
with the residual stacks of short chunks batched, for GPUs; without batching; or also with the upsamplers kept dense (a
debug switch, to measure what the compact form gains)."""

CHANNEL_MULTIPLES = {"metal": 32}
"""What channels are filled up to, by device family: on Apple GPUs with tensor units ggml's matrix product needs rows of
a multiple of 32 and makes NaN of others."""

Caches = dict[str, Tensor]


class Decoder(ABC):
    """One formulation of the decoder on one backend. Owns its weights."""

    name: str
    """As in :data:`KERNELS`."""

    def __init__(self, config: CodecConfig, backend: Backend) -> None:
        self.config, self.backend = config, backend

    def cache_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape (ggml order) of every cache of a stream, as this formulation keeps them."""
        return {spec.name: self.cache_ne(spec) for spec in self.config.cache_plan()}

    @abstractmethod
    def cache_ne(self, spec: CacheSpec) -> tuple[int, int]:
        """The shape (ggml order) in which this formulation keeps one cache of the plan."""

    @abstractmethod
    def build(self, graph: Graph, caches: Caches, frames: int) -> tuple[Tensor, Tensor]:
        """Build the graph of *frames* frames: its input for the latents and its output, *frames* * samples_per_frame
        float32 samples before the clamp. *caches* has the tensors of :meth:`cache_shapes`; the graph reads each
        as left context and then refreshes it."""

    @abstractmethod
    def arrange(self, latents: np.ndarray) -> np.ndarray:
        """Latents (frames, channels) in the layout of the graph's input."""

    @property
    @abstractmethod
    def max_nodes(self) -> int:
        """An upper bound on the nodes of a graph."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of the weights on the device."""

    @property
    @abstractmethod
    def closed(self) -> bool: ...

    @abstractmethod
    def close(self) -> None:
        """Free the weights."""


class StockDecoder(Decoder):
    """The decoder from ggml's own operators, activations with time fastest (ne [T, C])."""

    def __init__(self, config: CodecConfig, file: GGUFFile, backend: Backend, dense: bool = False,
                 joined_type: int | None = None) -> None:
        super().__init__(config, backend)
        self.name = "dense" if dense else "stock"
        multiple = CHANNEL_MULTIPLES.get(backend.device.family, 1)
        self.weights = StockWeights(config, file, backend, dense, joined_type, multiple)

    def cache_ne(self, spec: CacheSpec) -> tuple[int, int]:
        return spec.columns, self.weights.padded(spec.channels)

    def arrange(self, latents: np.ndarray) -> np.ndarray:
        missing = self.weights.padded(latents.shape[1]) - latents.shape[1]
        return np.ascontiguousarray(np.pad(latents.T, ((0, missing), (0, 0))))

    @property
    def max_nodes(self) -> int:
        # a convolution, the half-snake before it and the sums around them are 17 nodes, an upsampler fewer
        return 24 * (len(self.config.convs()) + len(self.config.up_rates)) + 64

    def build(self, graph: Graph, caches: Caches, frames: int) -> tuple[Tensor, Tensor]:
        config = self.config
        latents = graph.input(F32, (frames, self.weights.padded(config.latent_channels)), "latents")
        x = self._conv(graph, caches, config.pre, latents)
        for stage in config.stages():
            x = self._stage(graph, caches, stage, x)
        x = self._activation(graph, "dec.post_act", x)
        return latents, graph.output(self._conv(graph, caches, config.post, x), "audio")

    def _stage(self, graph: Graph, caches: Caches, stage: StageSpec, x: Tensor) -> Tensor:
        x = self._activation(graph, stage.activation, x)
        x = layers.with_context(graph, caches[stage.upsampler], x)
        kernel, bias = self.weights[f"{stage.upsampler}.w"], self.weights[f"{stage.upsampler}.b"]
        if stage.index in self.weights.compact:
            x = layers.upsample_compact(graph, kernel, bias, x)
            x = layers.fill_up(graph, x, self.weights.get(f"{stage.upsampler}.fill"))
        else:
            x = layers.upsample_dense(graph, kernel, bias, x, stage.rate)
        return self._residual(graph, caches, stage, x)

    def _residual(self, graph: Graph, caches: Caches, stage: StageSpec, x: Tensor) -> Tensor:
        return layers.mean(graph, [self._stack(graph, caches, stack, x) for stack in stage.stacks])

    def _stack(self, graph: Graph, caches: Caches, stack: tuple[BlockSpec, ...], x: Tensor) -> Tensor:
        for block in stack:
            y = self._activation(graph, block.input_activation, x)
            y = self._conv(graph, caches, block.input_conv, y)
            y = self._activation(graph, block.skip_activation, y)
            y = self._conv(graph, caches, block.skip_conv, y)
            x = ops.add(graph.context, x, y)
        return x

    def _conv(self, graph: Graph, caches: Caches, conv: ConvSpec, x: Tensor) -> Tensor:
        joined = layers.with_context(graph, caches.get(conv.name), x)
        return layers.conv1d(graph, self.weights[f"{conv.name}.w"], self.weights[f"{conv.name}.b"], joined,
                             conv.dilation)

    def _activation(self, graph: Graph, name: str, x: Tensor) -> Tensor:
        return layers.half_snake(graph, self.weights[f"{name}.alpha"], self.weights[f"{name}.alpha_inv"], x,
                                 self.weights.snakes[name])

    @property
    def weight_bytes(self) -> int:
        return self.weights.nbytes

    @property
    def closed(self) -> bool:
        return self.weights.closed

    def close(self) -> None:
        self.weights.close()


def select_decoder(config: CodecConfig, file: GGUFFile, backend: Backend, kernels: str = "auto") -> Decoder:
    """The decoder for *backend*; *kernels* as in :data:`KERNELS`.

    Raises ``ValueError`` for an unknown name, :class:`CapabilityError` for native kernels where they cannot run, and as
    the decoders do.
    """
    if kernels not in KERNELS:
        raise ValueError(f"unknown kernels {kernels!r}; use one of: {', '.join(KERNELS)}")
    if kernels in ("auto", "native"):
        from .native_layers import NativeDecoder, unavailable

        if kernels == "native" or not unavailable(backend):
            return NativeDecoder(config, file, backend)
    if kernels == "batched" or (kernels == "auto" and not backend.device.is_cpu):
        from .batched import BatchedDecoder

        return BatchedDecoder(config, file, backend)
    return StockDecoder(config, file, backend, dense=kernels == "dense")
