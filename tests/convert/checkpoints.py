"""Small checkpoints for the converter's tests: configurations, state dicts, and the archives around them."""

from __future__ import annotations

import copy
import gzip
import importlib.util
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pymagpie.convert.codec_layout import DECODER_TARGET, QUANTIZER_TARGET
from pymagpie.convert.codec_layout import TARGET as CODEC_TARGET
from pymagpie.convert.magpie_layout import TARGET as MAGPIE_TARGET
from pymagpie.convert.magpie_layout import MagpieTopology

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed (pymagpie[convert])"
)

PREFIX = "0123456789abcdef" * 2

CODEC_CONFIG: dict[str, Any] = {
    "target": CODEC_TARGET,
    "nemo_version": "3.0.0",
    "sample_rate": 8000,
    "samples_per_frame": 6,
    "audio_encoder": {"_target_": "anything"},
    "audio_decoder": {
        "_target_": DECODER_TARGET,
        "up_sample_rates": [3, 2],
        "input_dim": 4,
        "base_channels": 8,
        "in_kernel_size": 5,
        "out_kernel_size": 3,
        "resblock_kernel_sizes": [3],
        "resblock_dilation_sizes": [1, 2],
        "activation": "half_snake",
        "output_activation": "clamp",
        "pad_mode": "zeros",
        "n_groups_equal_to_out_channels": True,
    },
    "vector_quantizer": {"_target_": QUANTIZER_TARGET, "num_groups": 2, "num_levels_per_group": [5, 4]},
}

MAGPIE_TOPOLOGY = MagpieTopology(
    text_vocab_size=40,
    audio_codebooks=2,
    audio_vocab_size=20,
    embedding_dim=32,
    ffn_dim=64,
    context_length=24,
    encoder_context_length=16,
    encoder_layers=1,
    encoder_heads=2,
    decoder_layers=2,
    decoder_heads=4,
    cross_head_dim=8,
    local_dim=16,
    local_ffn_dim=64,
    baked_length=3,
    baked_lengths=(3, 2),
    speaker_names=("Ada", "Bob"),
)


def magpie_config(topology: MagpieTopology = MAGPIE_TOPOLOGY, **inference: Any) -> dict[str, Any]:
    """The configuration that NeMo would have saved for `topology`."""
    t = topology
    stack = {"d_model": t.embedding_dim, "d_ffn": t.ffn_dim, "is_causal": True, "apply_norm_out": True,
             "use_learnable_pos_emb": True}
    return {
        "target": MAGPIE_TARGET,
        "nemo_version": "3.0.0",
        "model_type": "decoder_ce",
        "codecmodel_path": "nvidia/some-codec",
        "embedding_dim": t.embedding_dim,
        "frame_stacking_factor": t.frame_stacking_factor,
        "local_transformer_type": "autoregressive",
        "local_transformer_n_layers": t.local_layers,
        "local_transformer_n_heads": t.local_heads,
        "local_transformer_hidden_dim": t.local_dim,
        "encoder": {**stack, "n_layers": t.encoder_layers, "sa_n_heads": t.encoder_heads,
                    "kernel_size": t.encoder_kernel_size, "max_length_causal_mask": t.encoder_context_length},
        "decoder": {**stack, "n_layers": t.decoder_layers, "sa_n_heads": t.decoder_heads, "has_xattn": True,
                    "kernel_size": t.decoder_kernel_size, "max_length_causal_mask": t.context_length,
                    "xa_d_head": t.cross_head_dim, "xa_n_heads": t.cross_heads, "xa_d_memory": t.embedding_dim,
                    "apply_norm_to_cond": True},
        "text_tokenizers": {
            "english_phoneme": {"g2p": {"phoneme_dict": f"nemo:{PREFIX}_english.dict", "home": "${oc.env:HOME}"}},
            "byte": {"pretrained_model": "google/byt5-small"},
        },
        "inference_parameters": inference,
    }


def magpie_state(topology: MagpieTopology = MAGPIE_TOPOLOGY, seed: int = 0) -> dict[str, Any]:
    """A random state dict of `topology`, with what NeMo saves beside the weights."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    state = {name: torch.randn(shape, generator=generator) for name, shape in topology.shapes()}
    state["encoder.layers.0.self_attention.causal_mask"] = torch.ones(1, 1, 4, 4)
    state["_baked_embedding_T"] = torch.tensor(topology.baked_length)
    state["_baked_embedding_D"] = torch.tensor(topology.embedding_dim)
    state["baked_context_embedding_len"] = torch.tensor(topology.baked_lengths)
    return state


def codec_state(old_names: bool = False, grouped: bool = True, seed: int = 0) -> dict[str, Any]:
    """A random state dict for CODEC_CONFIG, its weight norm under torch's new or old names."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    gain, direction = ("weight_g", "weight_v") if old_names else (
        "parametrizations.weight.original0", "parametrizations.weight.original1")
    state = {}

    def conv(name: str, shape: tuple[int, ...], outputs: int) -> None:
        state[f"audio_decoder.{name}.conv.{gain}"] = torch.rand((shape[0], 1, 1), generator=generator) + 0.5
        state[f"audio_decoder.{name}.conv.{direction}"] = torch.randn(shape, generator=generator)
        state[f"audio_decoder.{name}.conv.bias"] = torch.randn(outputs, generator=generator)

    def alpha(name: str, channels: int) -> None:
        shape = (1, channels // 2, 1)
        state[f"audio_decoder.{name}.activation.snake_act.alpha"] = torch.rand(shape, generator=generator) + 0.5

    conv("pre_conv", (8, 4, 5), 8)
    for stage, (inputs, rate) in enumerate(((8, 3), (4, 2))):
        outputs = inputs // 2
        alpha(f"activations.{stage}", inputs)
        conv(f"up_sample_conv_layers.{stage}", (inputs, 1 if grouped else outputs, 2 * rate), outputs)
        for m in range(2):
            block = f"res_layers.{stage}.res_blocks.0.res_blocks.{m}"
            for half in ("input", "skip"):
                alpha(f"{block}.{half}_activation", outputs)
                conv(f"{block}.{half}_conv", (outputs, outputs, 3), outputs)
    alpha("post_activation", 2)
    conv("post_conv", (1, 2, 3), 1)
    state["vector_quantizer.fsqs.0.num_levels"] = torch.tensor([[5], [4]], dtype=torch.int32)[None]
    state["audio_encoder.pre_conv.conv.weight"] = torch.ones(2, 1, 3)
    state["discriminator.convs.0.bias"] = torch.ones(3)
    state["mel_loss_fn.window"] = torch.ones(5)
    return state


def edited(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of `config` with the setting at the dotted `path` replaced, or removed when `value` is ``...``."""
    config = copy.deepcopy(config)
    *parents, last = path.split(".")
    section = config
    for key in parents:
        section = section[key]
    if value is ...:
        del section[last]
    else:
        section[last] = value
    return config


def weights_bytes(state: Any, **options: Any) -> bytes:
    """`state` as torch.save writes it."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer, **options)
    return buffer.getvalue()


def members(config: dict[str, Any], state: Any, **assets: bytes) -> dict[str, bytes]:
    """The members of a checkpoint; JSON is YAML, so the configuration needs no YAML writer."""
    return {"model_config.yaml": json.dumps(config).encode(), "model_weights.ckpt": weights_bytes(state), **assets}


def write_directory(path: Path, contents: dict[str, bytes]) -> Path:
    path.mkdir()
    for name, data in contents.items():
        (path / name).write_bytes(data)
    return path


def write_tar(path: Path, contents: dict[str, bytes], compress: bool = False) -> Path:
    """`contents` as NeMo packs it, with ``./`` before the names."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in contents.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    path.write_bytes(gzip.compress(buffer.getvalue()) if compress else buffer.getvalue())
    return path


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, str]]:
    """(metadata, tensors in numpy order, type names) read by the gguf package, not by our own reader."""
    import gguf

    reader = gguf.GGUFReader(path)
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    return metadata, tensors, {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
