"""The decoder for GPUs, where a short chunk costs what its number of kernel launches costs.

The parallel residual stacks of a stage have one shape but for the kernel size. For short chunks they run as one batch:
kernels padded in front with zero taps to the longest, activations [T, n, C] for n stacks. That is a third of the nodes
for half as many multiplications more, so long chunks keep the stacks apart.

Both kinds of graph serve one stream: the caches are the batch's, [columns, n, C] with the columns of the longest
kernel, and a graph of separate stacks takes views of the columns that it needs. It refreshes only those; the older ones
that it leaves stale meet zero taps.
"""

from __future__ import annotations

from ..ggml import F16, F32, Backend, Context, GGUFFile, Graph, Tensor, ops
from . import layers
from .config import CacheSpec, CodecConfig, ConvSpec, StageSpec
from .decoder import Caches, StockDecoder
from .weights import joined_name

BATCHED_FRAMES = 8
"""The longest chunk, in frames, whose stacks run as a batch: measured on an H200, where 16 frames are slower so."""


class BatchedDecoder(StockDecoder):
    """The decoder from ggml's own operators, the residual stacks of short chunks batched."""

    def __init__(self, config: CodecConfig, file: GGUFFile, backend: Backend) -> None:
        super().__init__(config, file, backend, joined_type=_joined_type(config, file, backend))
        self.name = "batched"

    def cache_shapes(self) -> dict[str, tuple[int, ...]]:
        residual = {conv.name for stage in self.config.stages() for conv in _convs(stage)}
        shapes: dict[str, tuple[int, ...]] = {
            spec.name: self.cache_ne(spec) for spec in self.config.cache_plan() if spec.name not in residual}
        for stage in self.config.stages():
            channels = self.weights.padded(stage.out_channels)
            for conv in _convs(stage):
                if columns := self._columns(stage, conv):
                    shapes[joined_name(conv.name)] = (columns, len(stage.stacks), channels)
        return shapes

    @staticmethod
    def _columns(stage: StageSpec, conv: ConvSpec) -> int:
        """Columns of the cache that *conv* shares with its like in the other stacks."""
        shared = joined_name(conv.name)
        return max(other.cache.columns for other in _convs(stage) if joined_name(other.name) == shared)

    def build(self, graph: Graph, caches: Caches, frames: int) -> tuple[Tensor, Tensor]:
        return super().build(graph, {**caches, **self._separate(graph, caches)}, frames)

    def _separate(self, graph: Graph, caches: Caches) -> Caches:
        """The cache of each convolution as a view of the batch's: the newest columns of its stack."""
        views = {}
        for stage in self.config.stages():
            for index, stack in enumerate(stage.stacks):
                for spec in (conv.cache for block in stack for conv in (block.input_conv, block.skip_conv)):
                    if spec.columns:
                        shared = caches[joined_name(spec.name)]
                        views[spec.name] = self._newest(graph, shared, spec, index)
        return views

    @staticmethod
    def _newest(graph: Graph, shared: Tensor, spec: CacheSpec, stack: int) -> Tensor:
        offset = stack * shared.nb[1] + (shared.ne[0] - spec.columns) * shared.nb[0]
        return ops.view(graph.context, shared, (spec.columns, shared.ne[2]), (shared.nb[2],), offset)

    @property
    def max_nodes(self) -> int:
        return super().max_nodes + 2 * len(self.config.convs())

    def _residual(self, graph: Graph, caches: Caches, stage: StageSpec, x: Tensor) -> Tensor:
        if x.ne[0] > BATCHED_FRAMES * self._samples(stage) or len(stage.stacks) == 1:
            return super()._residual(graph, caches, stage, x)
        blocks = stage.stacks[0]
        x = layers.fan_out(graph, x, self.weights[f"{joined_name(blocks[0].input_conv.name)}.b"])
        for block in blocks:
            y = self._activation(graph, joined_name(block.input_activation), x)
            y = self._batched_conv(graph, caches, block.input_conv, y)
            y = self._activation(graph, joined_name(block.skip_activation), y)
            y = self._batched_conv(graph, caches, block.skip_conv, y)
            x = ops.add(graph.context, x, y)
        return layers.mean_of_stacks(graph, x)

    def _samples(self, stage: StageSpec) -> int:
        """Columns that one frame has after *stage*."""
        samples = 1
        for rate in self.config.up_rates[:stage.index + 1]:
            samples *= rate
        return samples

    def _batched_conv(self, graph: Graph, caches: Caches, conv: ConvSpec, x: Tensor) -> Tensor:
        name = joined_name(conv.name)
        joined = layers.with_context(graph, caches.get(name), x)
        return layers.conv1d_batched(graph, self.weights[f"{name}.w"], self.weights[f"{name}.b"], joined, conv.dilation)


def _joined_type(config: CodecConfig, file: GGUFFile, backend: Backend) -> int:
    """f16 where the file has f16 kernels and a GPU, asked, can multiply two f16 matrices; f32 otherwise.

    Short chunks of such a file then round their activations to f16, as NVIDIA's runtime does (57 dB and better).
    """
    if backend.device.is_cpu or any(file.info(f"{conv.name}.w").type != F16 for conv in config.convs()):
        return F32
    with Context(3) as context:
        a, b = context.new_tensor(F16, (64, 32)), context.new_tensor(F16, (64, 16))
        return F16 if backend.supports_op(ops.mul_mat(context, a, b).pointer) else F32


def _convs(stage: StageSpec) -> list[ConvSpec]:
    return [conv for stack in stage.stacks for block in stack for conv in (block.input_conv, block.skip_conv)]
