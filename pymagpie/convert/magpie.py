"""MagpieTTS checkpoint -> GGUF: configuration and state dict in, the published layout out.

Both generations: v2602 (one frame a step) and v2607 (two stacked frames, no input projection of the local transformer).
Whether a checkpoint can speak without reference audio is seen from its baked context tensor, not from a configuration
key: NeMo 3 writes none.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pymagpie.convert.archive import Checkpoint
from pymagpie.convert.checkpoint import require_shapes, to_numpy
from pymagpie.convert.magpie_layout import (
    ARCHITECTURE,
    BAKED_CONTEXT,
    BAKED_LENGTHS,
    MODEL_TYPE,
    TARGET,
    V2602_SPEAKERS,
    InferenceDefaults,
    MagpieTopology,
    add_baked_sizes,
    add_weight,
    write_metadata,
)
from pymagpie.convert.settings import Section, boolean, integer, integers, number, require, section
from pymagpie.convert.writer import GGUFOutput
from pymagpie.errors import ModelError

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

_MAX_SPEAKERS_BYTES = 1 << 20
# Everything the model computes with; an unknown tensor in here means an architecture that we would get wrong.
_RUNNABLE = (
    "text_embedding",
    "audio_embeddings",
    "baked_context",
    "_baked",
    "encoder.",
    "decoder.",
    "final_proj",
    "local_transformer",
)
# The spellings of older configurations; NeMo maps them in the same way.
_OLD_NAMES = {
    "attention_prior_epsilon": "prior_epsilon",
    "attention_prior_lookahead_window": "lookahead_window_size",
}


def is_magpie(config: Section) -> bool:
    """Whether `config` describes a MagpieTTS model."""
    return "magpietts" in str(config.get("target", "")).lower()


def read_topology(config: Section, state: dict[str, torch.Tensor], speaker_names: tuple[str, ...]) -> MagpieTopology:
    """Check that `config` is a MagpieTTS model that we can run and read its sizes.

    `speaker_names` comes from `read_speakers`; when empty, the speakers get the names of generation v2602, or
    ``speaker-0``, ``speaker-1``, ... when there are not five.

    Raises ModelError naming the first setting or tensor that is not supported, and what is.
    """
    require(config, "", "target", (TARGET,))
    require(config, "", "model_type", (MODEL_TYPE,))
    require(config, "", "local_transformer_type", ("autoregressive",), "none")
    if BAKED_CONTEXT not in state:
        raise ModelError(
            f"the checkpoint has no {BAKED_CONTEXT}: only models with baked speaker contexts are supported"
        )
    dim = integer(config, "embedding_dim")
    encoder, decoder = _stack_section(config, "encoder", dim), _stack_section(config, "decoder", dim)
    require(decoder, "decoder.", "has_xattn", (True,))
    require(decoder, "decoder.", "apply_norm_to_cond", (True,), True)
    require(decoder, "decoder.", "xa_d_memory", (dim,))
    ffn = integer(encoder, "d_ffn")
    require(decoder, "decoder.", "d_ffn", (ffn,))

    stacking = integer(config, "frame_stacking_factor", 1)
    tables = sum(name.startswith("audio_embeddings.") for name in state)
    if stacking < 1 or tables < 1 or tables % stacking:
        raise ModelError(f"{tables} audio embedding tables do not divide into {stacking} stacked frames")
    speakers, baked_length = _baked_sizes(state, dim)
    if speaker_names and len(speaker_names) != speakers:
        raise ModelError(
            f"{len(speaker_names)} speaker names ({', '.join(speaker_names[:8])}) for {speakers} baked contexts"
        )
    if not speaker_names:
        speaker_names = (
            V2602_SPEAKERS
            if speakers == len(V2602_SPEAKERS)
            else tuple(f"speaker-{index}" for index in range(speakers))
        )
    lengths = (baked_length,) * speakers
    if BAKED_LENGTHS in state:
        lengths = tuple(to_numpy(BAKED_LENGTHS, state[BAKED_LENGTHS]).ravel().tolist())
    return MagpieTopology(
        text_vocab_size=_rows(state, "text_embedding.weight"),
        audio_codebooks=tables // stacking,
        audio_vocab_size=_rows(state, "audio_embeddings.0.weight"),
        frame_stacking_factor=stacking,
        embedding_dim=dim,
        ffn_dim=ffn,
        context_length=integer(decoder, "max_length_causal_mask"),
        encoder_context_length=integer(encoder, "max_length_causal_mask"),
        encoder_layers=integer(encoder, "n_layers"),
        encoder_heads=integer(encoder, "sa_n_heads"),
        encoder_kernel_size=integer(encoder, "kernel_size"),
        decoder_layers=integer(decoder, "n_layers"),
        decoder_heads=integer(decoder, "sa_n_heads"),
        decoder_kernel_size=integer(decoder, "kernel_size"),
        cross_heads=integer(decoder, "xa_n_heads"),
        cross_head_dim=integer(decoder, "xa_d_head"),
        local_layers=integer(config, "local_transformer_n_layers"),
        local_heads=integer(config, "local_transformer_n_heads"),
        local_dim=integer(config, "local_transformer_hidden_dim"),
        local_ffn_dim=_rows(state, "local_transformer.layers.0.pos_ff.proj.conv.weight"),
        baked_length=baked_length,
        speaker_names=speaker_names,
        baked_lengths=lengths,
        inference=read_inference(config),
        codec_model=str(config.get("codecmodel_path") or ""),
        nemo_version=str(config.get("nemo_version") or ""),
        config=config,
    )


def read_inference(config: Section) -> InferenceDefaults:
    """Generation settings of `config`, the prior's under their new or their old names (the new ones win)."""
    given: Section = dict(config.get("inference_parameters") or {})
    for new, old in _OLD_NAMES.items():
        if given.get(new) is None and given.get(old) is not None:
            given[new] = given[old]
    values: dict[str, Any] = {}
    for key, default in vars(InferenceDefaults()).items():
        if given.get(key) is None:
            continue
        if default is None:
            values[key] = integers(given, key)
        elif isinstance(default, bool):
            values[key] = boolean(given, key, default)
        elif isinstance(default, int):
            values[key] = integer(given, key)
        else:
            values[key] = number(given, key, default)
    return InferenceDefaults(**values)


def read_speakers(checkpoint: Checkpoint, config: Section) -> tuple[str, ...]:
    """Speaker names in index order from the checkpoint's ``*speakers.json``; empty when it has none."""
    reference = str(config.get("speaker_map") or "").removeprefix("nemo:")
    found = [name for name in checkpoint.names if name == reference] or [
        name for name in checkpoint.names if name.endswith("speakers.json")
    ]
    if not found:
        return ()
    where = f"{checkpoint.path}: {found[0]}"
    try:
        indices = json.loads(checkpoint.read(found[0], _MAX_SPEAKERS_BYTES))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where}: not JSON: {error}") from error
    valid = isinstance(indices, dict) and all(isinstance(index, int) for index in indices.values())
    if not valid or not indices or sorted(indices.values()) != list(range(len(indices))):
        raise ModelError(f"{where}: a mapping of speaker names to 0, 1, 2, ... is expected")
    return tuple(sorted(indices, key=indices.__getitem__))


def convert_magpie(
    topology: MagpieTopology, state: dict[str, torch.Tensor], output: Path, outtype: str, local_outtype: str
) -> int:
    """Write a MagpieTTS model to `output`; returns the number of tensors. Takes the tensors out of `state`.

    Raises ModelError when a tensor is missing, unknown, or of another shape than the configuration says.
    """
    expected = dict(topology.shapes())
    require_shapes({name: tuple(tensor.shape) for name, tensor in state.items()}, expected.items(), "MagpieTTS")
    _check_rest(state, expected)
    with GGUFOutput(output, ARCHITECTURE) as out:
        full_size = topology.embedding_dim == MagpieTopology.embedding_dim
        write_metadata(
            out,
            topology,
            "NVIDIA MagpieTTS multilingual 357M" if full_size else "MagpieTTS",
            "MagpieTTS acoustic model converted from a NeMo checkpoint by pymagpie",
        )
        for name in expected:
            weight = to_numpy(name, state.pop(name))
            if weight.dtype != np.float32:
                raise ModelError(f"tensor {name!r} holds integers, a floating point type is needed")
            add_weight(out, name, weight, outtype, local_outtype)
        add_baked_sizes(out, topology)
    return out.tensor_count


def _check_rest(state: dict[str, torch.Tensor], expected: dict[str, tuple[int, ...]]) -> None:
    baked = ("_baked_embedding_T", "_baked_embedding_D", BAKED_LENGTHS)
    rest = [name for name in state if name not in expected and name not in baked and not name.endswith(".causal_mask")]
    unknown = [name for name in rest if name.startswith(_RUNNABLE)]
    if unknown:
        raise ModelError(f"the checkpoint has tensors of an unknown architecture: {', '.join(unknown[:3])}")
    if rest:
        log.info("skipped %d tensors that generation does not need: %s ...", len(rest), rest[0])


def _stack_section(config: Section, key: str, dim: int) -> Section:
    stack = section(config, key)
    require(stack, f"{key}.", "d_model", (dim,))
    require(stack, f"{key}.", "is_causal", (True,), True)
    require(stack, f"{key}.", "apply_norm_out", (True,), False)
    require(stack, f"{key}.", "use_learnable_pos_emb", (True,), False)
    require(stack, f"{key}.", "use_moe", (False,), False)
    return stack


def _baked_sizes(state: dict[str, torch.Tensor], dim: int) -> tuple[int, int]:
    """(speakers, context rows) from the shape of the baked table and its size entries."""
    shape = tuple(state[BAKED_CONTEXT].shape)
    if len(shape) != 2 or not shape[0] or dim < 1 or not shape[1] or shape[1] % dim:
        raise ModelError(f"tensor {BAKED_CONTEXT!r} has shape {shape}, (speakers, rows * {dim}) is expected")
    length = shape[1] // dim
    for name, size in (("_baked_embedding_T", length), ("_baked_embedding_D", dim)):
        if name in state and to_numpy(name, state[name]).ravel().tolist() != [size]:
            raise ModelError(f"tensor {name!r} does not say {size}, as the shape of {BAKED_CONTEXT} does")
    return shape[0], length


def _rows(state: dict[str, torch.Tensor], name: str) -> int:
    if name not in state:
        raise ModelError(f"the MagpieTTS checkpoint lacks {name}")
    return state[name].shape[0] if state[name].ndim else 0
