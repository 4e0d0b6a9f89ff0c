"""The decoder from our native CPU kernels: fused layers, activations with channels fastest.

Activations are float32 with ne [channels padded to the vector width, T], numpy (T, channels). A convolution reads the
rows before its input from its cache, adds bias, residual and the sum of the stacks before, and stores the result as it
is, through the half-snakes that its readers want, or both: one plane each in dimension 2. So no half-snake, sum or
concatenation is a node of its own. The caches of a residual block are refreshed by one node right behind the block.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .. import native
from ..errors import CapabilityError
from ..ggml import F32, Backend, Buffer, Context, GGUFFile, Graph, Tensor, custom, ops
from . import native_pack as pack
from .config import CacheSpec, CodecConfig, ConvSpec, StageSpec
from .decoder import Caches, Decoder
from .weights import check_tensors, compact_kernel, read_f32


def unavailable(backend: Backend) -> str:
    """Why the native kernels cannot serve *backend*; empty when they can."""
    if not backend.device.is_cpu:
        return f"they run on the CPU, not on {backend.device.name}"
    if native.load() is None:
        return f"the native library is missing: {native.status().reason}"
    try:
        custom.tensor_layout()
    except CapabilityError as error:
        return str(error)
    return ""


class NativeWeights:
    """The weights in the kernels' layout, in one buffer on *backend*: ``NAME.w``, ``NAME.b``, and ``NAME.s`` with the
    half-snakes that follow the layer NAME."""

    def __init__(self, config: CodecConfig, file: GGUFFile, backend: Backend, lanes: int) -> None:
        check_tensors(config, file)
        self._file, self._lanes = file, lanes
        self._loads: dict[str, Callable[[], np.ndarray]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.compact: set[int] = set()
        """Indices of the stages whose upsampler is grouped."""
        followers = snakes_after(config)
        for conv in config.convs():
            self._conv(conv, followers.get(conv.name, []))
        for stage in config.stages():
            self._upsampler(stage, followers[stage.upsampler])
        context = Context(len(self._loads))
        try:
            self._tensors = {name: context.new_tensor(F32, ne, name) for name, ne in self._shapes.items()}
            self.buffer = Buffer(context, backend, "the codec's weights")
        except BaseException:
            context.close()
            raise
        try:
            for name, load in self._loads.items():
                self._tensors[name].set(load())
        except BaseException:
            self.buffer.close()
            raise
        del self._file, self._loads

    def _add(self, name: str, ne: tuple[int, ...], load: Callable[[], np.ndarray]) -> None:
        self._shapes[name], self._loads[name] = ne, load

    def _conv(self, conv: ConvSpec, snakes: list[str]) -> None:
        file, lanes = self._file, self._lanes
        shape = (conv.out_channels, conv.in_channels, conv.kernel)
        width = pack.padded(conv.out_channels, lanes)
        self._add(f"{conv.name}.w", (lanes, conv.in_channels, conv.kernel, width // lanes),
                  lambda: pack.pack_conv(read_f32(file, f"{conv.name}.w").reshape(shape), lanes))
        self._channels(conv.name, conv.out_channels, snakes)

    def _upsampler(self, stage: StageSpec, snakes: list[str]) -> None:
        file, lanes, name = self._file, self._lanes, f"{stage.upsampler}.w"
        width = pack.padded(stage.out_channels, lanes)

        def dense() -> np.ndarray:
            return read_f32(file, name).reshape(stage.in_channels, stage.out_channels, 2 * stage.rate)

        kernel = compact_kernel(dense(), stage.rate)
        if kernel is None:
            self._add(name, (lanes, stage.in_channels, 2, stage.rate * width // lanes),
                      lambda: pack.pack_conv(pack.pack_dense_upsample(dense(), lanes), lanes))
            self._channels(stage.upsampler, stage.out_channels, snakes, copies=stage.rate)
            return
        self.compact.add(stage.index)
        self._add(name, (lanes, kernel.shape[2], stage.rate, width // lanes), lambda: pack.pack_upsample(kernel, lanes))
        self._channels(stage.upsampler, stage.out_channels, snakes)

    def _channels(self, name: str, channels: int, snakes: list[str], copies: int = 1) -> None:
        """Bias and half-snakes of a layer; *copies* side by side where its phases are channels of their own."""
        file, lanes = self._file, self._lanes
        width = pack.padded(channels, lanes)
        self._add(f"{name}.b", (copies * width,),
                  lambda: np.tile(pack.pack_channels(read_f32(file, f"{name}.b"), lanes), copies))
        if snakes:
            self._add(f"{name}.s", (copies * width, 3, len(snakes)), lambda: np.tile(pack.pack_snakes(
                [(read_f32(file, f"{s}.alpha"), read_f32(file, f"{s}.alpha_inv")) for s in snakes], channels, lanes),
                copies))

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def get(self, name: str) -> Tensor | None:
        return self._tensors.get(name)


def snakes_after(config: CodecConfig) -> dict[str, list[str]]:
    """For each layer the half-snakes through which its readers want its result."""
    after: dict[str, list[str]] = {}
    stages = config.stages()
    after[config.pre.name] = [stages[0].activation]
    following = [stage.activation for stage in stages[1:]] + ["dec.post_act"]
    for stage, activation in zip(stages, following, strict=True):
        after[stage.upsampler] = [stack[0].input_activation for stack in stage.stacks]
        for stack in stage.stacks:
            for block, successor in zip(stack, [*stack[1:], None], strict=True):
                after[block.input_conv.name] = [block.skip_activation]
                after[block.skip_conv.name] = [successor.input_activation] if successor else []
        after[stage.stacks[-1][-1].skip_conv.name] = [activation]  # of the mean of the stacks
    return after


class NativeDecoder(Decoder):
    """The decoder from the native kernels, on the CPU backend."""

    name = "native"

    def __init__(self, config: CodecConfig, file: GGUFFile, backend: Backend, instruction_set: str | None = None,
                 ) -> None:
        """*instruction_set*: one of ``native.instruction_sets()``, the best by default.

        Raises :class:`CapabilityError` where the kernels cannot run, and as :class:`StockDecoder` does.
        """
        super().__init__(config, backend)
        if reason := unavailable(backend):
            raise CapabilityError(f"native kernels are not available: {reason}")
        self.instruction_set = native.choose_instruction_set(instruction_set)
        self._kernels, self._lanes = native.kernels(self.instruction_set)
        self.weights = NativeWeights(config, file, backend, self._lanes)

    def cache_ne(self, spec: CacheSpec) -> tuple[int, int]:
        return pack.padded(spec.channels, self._lanes), spec.columns

    def arrange(self, latents: np.ndarray) -> np.ndarray:
        spare = pack.padded(latents.shape[1], self._lanes) - latents.shape[1]
        return np.ascontiguousarray(np.pad(latents, ((0, 0), (0, spare))) if spare else latents)

    @property
    def max_nodes(self) -> int:
        # A layer, the views of its planes and the refresh of its cache.
        stacks = len(self.config.kernels)
        return 5 * len(self.config.convs()) + (stacks + 4) * len(self.config.up_rates) + 16

    def build(self, graph: Graph, caches: Caches, frames: int) -> tuple[Tensor, Tensor]:
        config = self.config
        latents = graph.input(F32, (pack.padded(config.latent_channels, self._lanes), frames), "latents")
        (x,) = self._conv(graph, caches, config.pre, latents, raw=False)
        self._refresh(graph, caches, (config.pre.name, latents))
        for stage in config.stages():
            x = self._stage(graph, caches, stage, x)
        ne = (1, frames * config.samples_per_frame)
        audio = self._layer(graph, "conv", config.post, ne, caches.get(config.post.name), x)
        self._refresh(graph, caches, (config.post.name, x))
        return latents, graph.output(audio, "audio")

    def _stage(self, graph: Graph, caches: Caches, stage: StageSpec, x: Tensor) -> Tensor:
        """The stage's result through the half-snake that follows it."""
        start, *activated = self._upsample(graph, caches, stage, x)
        self._refresh(graph, caches, (stage.upsampler, x))
        total: Tensor | None = None
        for stack, a in zip(stage.stacks, activated, strict=True):
            x, last_stack = start, stack is stage.stacks[-1]
            for block in stack:
                (b,) = self._conv(graph, caches, block.input_conv, a, raw=False)
                if block is not stack[-1]:
                    planes = self._conv(graph, caches, block.skip_conv, b, residual=x)
                else:
                    planes = self._conv(graph, caches, block.skip_conv, b, residual=x, addend=total, raw=not last_stack,
                                        scale=1 / len(stage.stacks) if last_stack else 1.0)
                self._refresh(graph, caches, (block.input_conv.name, a), (block.skip_conv.name, b))
                x, a = planes[0], planes[-1]
            total = x
        assert total is not None
        return total

    def _conv(self, graph: Graph, caches: Caches, conv: ConvSpec, x: Tensor, residual: Tensor | None = None,
              addend: Tensor | None = None, raw: bool = True, scale: float = 1.0) -> list[Tensor]:
        """The planes of a convolution's result, each ne [channels, T]."""
        ne = (pack.padded(conv.out_channels, self._lanes), x.ne[1])
        y = self._layer(graph, "conv", conv, ne, caches.get(conv.name), x, residual, addend, raw, scale)
        return self._planes(graph, y, *ne)

    def _upsample(self, graph: Graph, caches: Caches, stage: StageSpec, x: Tensor) -> list[Tensor]:
        """The planes of an upsampler's result: as it is, then for the first block of each stack."""
        width, rows = pack.padded(stage.out_channels, self._lanes), x.ne[1]
        name, cache = stage.upsampler, caches[stage.upsampler]
        if stage.index in self.weights.compact:
            # In the kernel's parameters the rate stands for the taps and the inputs of a group for the dilation.
            spec = ConvSpec(name, stage.rate, stage.in_channels, stage.out_channels,
                            stage.in_channels // stage.out_channels)
            y = self._layer(graph, "upsample", spec, (width, stage.rate * rows), cache, x)
        else:
            spec = ConvSpec(name, 2, stage.in_channels, stage.out_channels)
            y = self._layer(graph, "conv", spec, (stage.rate * width, rows), cache, x)
        return self._planes(graph, y, width, stage.rate * rows)

    def _layer(self, graph: Graph, op: str, spec: ConvSpec, ne: tuple[int, int], cache: Tensor | None, x: Tensor,
               residual: Tensor | None = None, addend: Tensor | None = None, raw: bool = True, scale: float = 1.0,
               ) -> Tensor:
        """One node, ne [*ne, planes]."""
        weights = self.weights
        snakes = weights.get(f"{spec.name}.s")
        activations = snakes.ne[2] if snakes else 0
        params = self._params(in_channels=spec.in_channels, taps=spec.kernel, dilation=spec.dilation, raw=raw,
                              activations=activations, scale=scale)
        sources = [x, cache, weights[f"{spec.name}.w"], weights[f"{spec.name}.b"], residual, addend, snakes]
        y = custom.custom_4d(graph.context, F32, (*ne, raw + activations), sources, native.address(f"pymagpie_{op}"),
                             *params)
        graph.expand(y.set_name(spec.name))
        return y

    def _refresh(self, graph: Graph, caches: Caches, *read: tuple[str, Tensor]) -> None:
        """Move the caches of layers that have just run on, over the x that each read."""
        pairs = [(caches[name], x) for name, x in read if name in caches]
        if pairs:
            first, *others = [tensor for pair in pairs for tensor in pair]
            graph.expand(custom.custom_inplace(graph.context, first, others, native.address("pymagpie_refresh"),
                                               *self._params()))

    def _params(self, **values: float) -> tuple[int, object]:
        """The address of an op's parameters, and their owner."""
        params = native.ffi().new("pymagpie_op_params *",
                                  {"kernels": self._kernels, "layout": custom.tensor_layout(), **values})
        return int(native.ffi().cast("uintptr_t", params)), params

    def _planes(self, graph: Graph, y: Tensor, channels: int, rows: int) -> list[Tensor]:
        return [ops.view(graph.context, y, (channels, rows), (channels * 4,), plane * y.nb[2])
                for plane in range(y.ne[2])]

    @property
    def weight_bytes(self) -> int:
        return self.weights.buffer.nbytes

    @property
    def closed(self) -> bool:
        return self.weights.buffer.closed

    def close(self) -> None:
        self.weights.buffer.close()
