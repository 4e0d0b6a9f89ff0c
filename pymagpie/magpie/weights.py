"""The weights of one model on one device: which tensors there must be, and the owner of their memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import ModelError
from ..ggml import BF16, F16, F32, Q8_0, Backend, Buffer, Context, GGUFFile, Tensor, type_name
from .config import MAX_POSITIONS, MagpieConfig, StackConfig

MATRIX_TYPES = (F32, F16, BF16, Q8_0)


@dataclass(frozen=True)
class LayerWeights:
    """One transformer layer. Matrices are [in, out] in ne order; cross-attention is the decoder's alone."""

    norm_self: Tensor
    qkv: Tensor
    self_out: Tensor
    norm_ffn: Tensor
    ffn_in: tuple[Tensor, ...]
    """One matrix for each tap of the convolution, the oldest frame's first."""
    ffn_out: tuple[Tensor, ...]
    norm_query: Tensor | None = None
    norm_memory: Tensor | None = None
    cross_q: Tensor | None = None
    cross_kv: Tensor | None = None
    cross_out: Tensor | None = None


class Weights:
    """Owns every weight tensor. Matrices keep the file's type; norms, biases, positions and the context are f32."""

    def __init__(self, file: GGUFFile, config: MagpieConfig, backend: Backend) -> None:
        """Check the shapes of all tensors that *config* asks for, then load them.

        *config* may state the position tables' sizes wrongly; :attr:`config` has those of the file. Raises
        :class:`ModelError` for a missing tensor, a wrong shape or a type that is not f32, f16, bf16 or q8_0.
        """
        self.config = config = config.with_positions(
            *(_table_rows(file, f"{stack}.position_embeddings.weight", width) for stack, width in (
                ("encoder", config.width), ("decoder", config.width), ("local_transformer", config.local.width))))
        _check_positions(file, config)
        self._file = file
        self._plan: list[tuple[str, Tensor, int]] = []
        self.context = Context(32 + 32 * (config.encoder.layers + config.decoder.layers + config.local.layers)
                               + 2 * config.encoder.kernel_size * config.encoder.layers + 2 * config.slots)
        width, local, vocab, slots = config.width, config.local.width, config.vocab_size, config.slots
        self.text_embedding = self._matrix("text_embedding.weight", width, config.text_vocab_size)
        self.audio_embeddings = [self._matrix(f"audio_embeddings.{i}.weight", width, vocab) for i in range(slots)]
        self.voice_context = self._f32("baked_context_embedding.weight", config.context_frames * width,
                                       len(config.voices))
        self.encoder_positions = self._f32("encoder.position_embeddings.weight", width, config.encoder.positions)
        self.decoder_positions = self._f32("decoder.position_embeddings.weight", width, config.decoder.positions)
        self.local_positions = self._f32("local_transformer.position_embeddings.weight", local, config.local.positions)
        self.encoder_norm = self._f32("encoder.norm_out.weight", width)
        self.decoder_norm = self._f32("decoder.norm_out.weight", width)
        self.encoder_layers = self._stack("encoder", config.encoder)
        self.decoder_layers = self._stack("decoder", config.decoder, cross=config.cross_heads * config.cross_head_dim)
        self.local_layers = self._stack("local_transformer", config.local)
        self.final_proj = self._matrix("final_proj.weight", width, vocab * slots)
        self.final_bias = self._f32("final_proj.bias", vocab * slots)
        self.local_in: Tensor | None = None
        self.local_in_bias: Tensor | None = None
        if local != width or "local_transformer_in_projection.weight" in file.tensors:
            self.local_in = self._matrix("local_transformer_in_projection.weight", width, local)
            self.local_in_bias = self._f32("local_transformer_in_projection.bias", local)
        self.local_out = [self._matrix(f"local_transformer_out_projections.{i}.weight", local, vocab)
                          for i in range(slots)]
        self.local_bias = self.context.new_tensor(F32, (vocab, slots), "local_transformer_out_projections.bias")
        for i in range(slots):
            name = f"local_transformer_out_projections.{i}.bias"
            self._check_shape(name, (vocab,))
            self._plan.append((name, self.local_bias, i * vocab * 4))
        self._load(backend)

    @property
    def precise(self) -> bool:
        """Whether the decoder's matrices are f32: such a model is computed without avoidable rounding."""
        return self.decoder_layers[0].qkv.type == F32

    @property
    def matrix_type(self) -> str:
        """The type of the decoder's matrices, by ggml's name."""
        return type_name(self.decoder_layers[0].qkv.type)

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes

    def close(self) -> None:
        self.buffer.close()

    def _stack(self, name: str, stack: StackConfig, cross: int = 0) -> list[LayerWeights]:
        width, ffn = stack.width, stack.ffn
        layers = []
        for index in range(stack.layers):
            prefix = f"{name}.layers.{index}."
            taps = range(stack.kernel_size)
            extra: dict[str, Tensor] = {}
            if cross:
                extra = {
                    "norm_query": self._f32(f"{prefix}norm_xattn_query.weight", width),
                    "norm_memory": self._f32(f"{prefix}norm_xattn_memory.weight", width),
                    "cross_q": self._matrix(f"{prefix}cross_attention.q_net.weight", width, cross),
                    "cross_kv": self._matrix(f"{prefix}cross_attention.kv_net.weight", width, 2 * cross),
                    "cross_out": self._matrix(f"{prefix}cross_attention.o_net.weight", cross, width)}
            layers.append(LayerWeights(
                norm_self=self._f32(f"{prefix}norm_self.weight", width),
                qkv=self._matrix(f"{prefix}self_attention.qkv_net.weight", width, 3 * width),
                self_out=self._matrix(f"{prefix}self_attention.o_net.weight", width, width),
                norm_ffn=self._f32(f"{prefix}norm_pos_ff.weight", width),
                ffn_in=tuple(self._matrix(f"{prefix}pos_ff.proj.conv.weight.k{k}", width, ffn) for k in taps),
                ffn_out=tuple(self._matrix(f"{prefix}pos_ff.o_net.conv.weight.k{k}", ffn, width) for k in taps),
                **extra))
        return layers

    def _matrix(self, name: str, *ne: int) -> Tensor:
        info = self._check_shape(name, ne)
        if info not in MATRIX_TYPES:
            allowed = ", ".join(type_name(t) for t in MATRIX_TYPES)
            raise ModelError(f"{self._file.path}: tensor {name!r} is {type_name(info)}; it must be {allowed}")
        return self._planned(name, info, ne)

    def _f32(self, name: str, *ne: int) -> Tensor:
        self._check_shape(name, ne)
        return self._planned(name, F32, ne)

    def _planned(self, name: str, ggml_type: int, ne: tuple[int, ...]) -> Tensor:
        tensor = self.context.new_tensor(ggml_type, ne, name)
        self._plan.append((name, tensor, 0))
        return tensor

    def _check_shape(self, name: str, ne: tuple[int, ...]) -> int:
        info = self._file.info(name)
        if _trim(info.ne) != _trim(ne):
            raise ModelError(f"{self._file.path}: tensor {name!r} has shape {list(info.ne)}, expected {list(ne)}")
        return info.type

    def _load(self, backend: Backend) -> None:
        self.buffer = Buffer(self.context, backend, f"the weights of {self._file.path.name}")
        try:
            for name, tensor, offset in self._plan:
                if tensor is self.local_bias:
                    tensor.set(self._file.read(name).astype(np.float32), offset)
                else:
                    self._file.load(name, tensor)
        except BaseException:
            self.buffer.close()
            raise
        del self._plan, self._file


def _trim(ne: tuple[int, ...]) -> tuple[int, ...]:
    dims = list(ne)
    while len(dims) > 1 and dims[-1] == 1:
        dims.pop()
    return tuple(dims)


def _table_rows(file: GGUFFile, name: str, width: int) -> int:
    ne = file.info(name).ne
    if len(ne) != 2 or ne[0] != width or not 1 <= ne[1] <= MAX_POSITIONS:
        raise ModelError(f"{file.path}: tensor {name!r} has shape {list(ne)}, expected [{width}, 1..{MAX_POSITIONS}]")
    return ne[1]


def _check_positions(file: GGUFFile, config: MagpieConfig) -> None:
    if config.decoder.positions <= config.context_frames:
        raise ModelError(f"{file.path}: {config.decoder.positions} decoder positions leave no room after "
                         f"{config.context_frames} context rows")
    if config.local.positions < config.slots:
        raise ModelError(f"{file.path}: the local transformer has {config.local.positions} positions for "
                         f"{config.slots} codes a step")
