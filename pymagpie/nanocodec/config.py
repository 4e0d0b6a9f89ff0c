"""What a NanoCodec decoder is made of, read from a GGUF's metadata, and the caches that a stream of it needs.

Nothing here touches ggml: a hostile or odd model is refused before any context or buffer exists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ModelError
from ..metadata import Metadata

ARCHITECTURE = "nemo-nano-codec"
MAX_CACHES = 512
"""The most caches that a stream may need; the public codec needs 97."""
MAX_CACHE_BYTES = 1 << 30
"""The most bytes that the caches of one stream may take; the public codec's take 714 KiB."""
MAX_SAMPLES_PER_FRAME = 1 << 16


@dataclass(frozen=True)
class CacheSpec:
    """One layer's left context: the last *columns* of its input, each of *channels* float32 values."""

    name: str
    columns: int
    channels: int

    @property
    def nbytes(self) -> int:
        return 4 * self.columns * self.channels


@dataclass(frozen=True)
class ConvSpec:
    """A causal convolution: the tensors ``NAME.w`` (ne [kernel, in_channels, out_channels]) and ``NAME.b``."""

    name: str
    kernel: int
    in_channels: int
    out_channels: int
    dilation: int = 1

    @property
    def cache(self) -> CacheSpec:
        return CacheSpec(self.name, (self.kernel - 1) * self.dilation, self.in_channels)


@dataclass(frozen=True)
class BlockSpec:
    """One residual block: half-snake, dilated convolution, half-snake, convolution, plus its input."""

    input_activation: str
    input_conv: ConvSpec
    skip_activation: str
    skip_conv: ConvSpec


@dataclass(frozen=True)
class StageSpec:
    """One upsampling stage: half-snake, transposed convolution (kernel 2 * rate), and parallel residual stacks."""

    index: int
    rate: int
    in_channels: int
    out_channels: int
    stacks: tuple[tuple[BlockSpec, ...], ...]

    @property
    def activation(self) -> str:
        return f"dec.act.{self.index}"

    @property
    def upsampler(self) -> str:
        return f"dec.up.{self.index}"

    @property
    def cache(self) -> CacheSpec:
        """The one frame before the current ones, all that a transposed convolution of kernel 2 * rate looks back."""
        return CacheSpec(self.upsampler, 1, self.in_channels)


@dataclass(frozen=True)
class CodecConfig:
    """The topology of one NanoCodec decoder."""

    sample_rate: int
    """Samples a second."""
    samples_per_frame: int
    num_codebooks: int
    levels: tuple[int, ...]
    """FSQ levels of each dimension of a codebook's code."""
    base_channels: int
    in_kernel: int
    out_kernel: int
    up_rates: tuple[int, ...]
    kernels: tuple[int, ...]
    dilations: tuple[int, ...]
    output_activation: str = "clamp"
    """``clamp`` or ``tanh``: what brings the last convolution's output into [-1, 1]."""

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], source: str = "model") -> CodecConfig:
        """Read and check the keys of a NanoCodec GGUF. Raises :class:`ModelError` naming the key and what it may be."""
        architecture = metadata.get("general.architecture")
        if architecture != ARCHITECTURE:
            raise ModelError(f"{source}: not a NanoCodec model (general.architecture is {architecture!r}, "
                             f"expected {ARCHITECTURE!r})")
        meta = Metadata(metadata, source, "nano_codec.")
        for key, allowed in (("activation", ("half_snake",)), ("pad_mode", ("zeros",)),
                             ("output_activation", ("clamp", "tanh"))):
            if (value := meta.text(f"decoder.{key}", allowed[0])) not in allowed:
                raise ModelError(f"{source}: nano_codec.decoder.{key} is {value!r}; supported: {', '.join(allowed)}")
        config = cls(
            sample_rate=meta.integer("sample_rate", 1_000, 384_000),
            samples_per_frame=meta.integer("samples_per_frame", 1, MAX_SAMPLES_PER_FRAME),
            num_codebooks=meta.integer("num_codebooks", 1, 256),
            levels=meta.integers("quantizer.num_levels_per_group", 2, 65_536, max_length=64),
            base_channels=meta.integer("decoder.base_channels", 2, 65_536),
            in_kernel=meta.integer("decoder.in_kernel_size", 1, 1_024),
            out_kernel=meta.integer("decoder.out_kernel_size", 1, 1_024),
            up_rates=meta.integers("decoder.up_sample_rates", 1, MAX_SAMPLES_PER_FRAME, max_length=16),
            kernels=meta.integers("decoder.resblock_kernel_sizes", 1, 1_024, max_length=256),
            dilations=meta.integers("decoder.resblock_dilation_sizes", 1, 4_096, max_length=256),
            output_activation=meta.text("decoder.output_activation", "clamp"))
        meta.integer("decoder.input_dim", config.latent_channels, config.latent_channels, config.latent_channels)
        meta.integer("codebook_size", config.codebook_size, config.codebook_size, config.codebook_size)
        config.check(source)
        return config

    def check(self, source: str = "model") -> None:
        """The rules between the fields, and the limits on caches. Raises :class:`ModelError`."""
        if self.codebook_size > (1 << 31) - 1:
            raise ModelError(f"{source}: FSQ levels {list(self.levels)} make {self.codebook_size} codes, "
                             "more than a 32-bit integer holds")
        if math.prod(self.up_rates) != self.samples_per_frame:
            raise ModelError(f"{source}: up_sample_rates {list(self.up_rates)} multiply to {math.prod(self.up_rates)}, "
                             f"but samples_per_frame is {self.samples_per_frame}")
        if self.base_channels >> len(self.up_rates) < 2:
            raise ModelError(f"{source}: {self.base_channels} base channels cannot be halved {len(self.up_rates)} "
                             "times and leave the 2 that a half-snake needs")
        caches = 2 + len(self.up_rates) * (1 + 2 * len(self.kernels) * len(self.dilations))
        if caches > MAX_CACHES:
            # Refine only now: kernels of one tap need no cache, but a hostile count must not build a long plan.
            per_stage = 1 + sum((k > 1) * 2 * len(self.dilations) for k in self.kernels)
            caches = (self.in_kernel > 1) + (self.out_kernel > 1) + len(self.up_rates) * per_stage
        if caches > MAX_CACHES:
            raise ModelError(f"{source}: a stream of this model needs {caches} caches; the limit is {MAX_CACHES}")
        size = sum(cache.nbytes for cache in self.cache_plan())
        if size > MAX_CACHE_BYTES:
            raise ModelError(f"{source}: the caches of a stream need {size} bytes; the limit is {MAX_CACHE_BYTES}")

    @property
    def codebook_size(self) -> int:
        """Codes of one codebook: they run from 0 to this less one."""
        return math.prod(self.levels)

    @property
    def latent_channels(self) -> int:
        """Channels of a dequantised frame: one for each FSQ dimension of each codebook."""
        return self.num_codebooks * len(self.levels)

    @property
    def frame_rate(self) -> float:
        """Frames a second."""
        return self.sample_rate / self.samples_per_frame

    @property
    def pre(self) -> ConvSpec:
        """The convolution from the latents to the base channels."""
        return ConvSpec("dec.pre", self.in_kernel, self.latent_channels, self.base_channels)

    @property
    def post(self) -> ConvSpec:
        """The convolution to one channel, the audio."""
        return ConvSpec("dec.post", self.out_kernel, self.out_channels, 1)

    @property
    def out_channels(self) -> int:
        """Channels after the last stage."""
        return self.base_channels >> len(self.up_rates)

    def stages(self) -> list[StageSpec]:
        """The upsampling stages, first to last; each halves the channels, rounding down."""
        return [StageSpec(index=i, rate=rate, in_channels=self.base_channels >> i,
                          out_channels=(channels := self.base_channels >> (i + 1)),
                          stacks=tuple(self._stack(f"dec.res.{i}.{j}", kernel, channels)
                                       for j, kernel in enumerate(self.kernels)))
                for i, rate in enumerate(self.up_rates)]

    def _stack(self, name: str, kernel: int, channels: int) -> tuple[BlockSpec, ...]:
        return tuple(BlockSpec(f"{name}.{m}.ia", ConvSpec(f"{name}.{m}.ic", kernel, channels, channels, dilation),
                               f"{name}.{m}.sa", ConvSpec(f"{name}.{m}.sc", kernel, channels, channels))
                     for m, dilation in enumerate(self.dilations))

    def convs(self) -> list[ConvSpec]:
        """Every convolution but the transposed ones, in the order of the forward pass."""
        blocks = [block for stage in self.stages() for stack in stage.stacks for block in stack]
        return [self.pre, *(conv for block in blocks for conv in (block.input_conv, block.skip_conv)), self.post]

    def activations(self) -> dict[str, int]:
        """Every half-snake by name, with its channels."""
        found = {}
        for stage in self.stages():
            found[stage.activation] = stage.in_channels
            for block in (block for stack in stage.stacks for block in stack):
                found[block.input_activation] = found[block.skip_activation] = stage.out_channels
        found["dec.post_act"] = self.out_channels
        return found

    def cache_plan(self) -> list[CacheSpec]:
        """The caches of one stream, in the order of the forward pass."""
        specs = [conv.cache for conv in self.convs()] + [stage.cache for stage in self.stages()]
        return [spec for spec in specs if spec.columns]
