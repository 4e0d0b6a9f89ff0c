"""Converting NanoCodec checkpoints: keys, names, shapes, types and values of the published layout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoints import CODEC_CONFIG, codec_state, edited, members, needs_torch, read_gguf, write_directory, write_tar

from pymagpie.convert import convert
from pymagpie.convert.codec_layout import CodecTopology, dense_upsampler
from pymagpie.convert.nanocodec import fold_weight_norm


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_directory(tmp_path / "codec", members(CODEC_CONFIG, codec_state()))


@needs_torch
@pytest.mark.parametrize("outtype", ["f32", "f16"])
def test_golden_archive_gives_the_committed_file(golden, tmp_path, outtype):
    result = convert(golden("nanocodec-tiny.nemo"), tmp_path / "out.gguf", outtype)
    assert (result.kind, result.tensors, result.bytes) == ("nanocodec", 387, (tmp_path / "out.gguf").stat().st_size)
    metadata, tensors, types = read_gguf(result.path)
    expected_metadata, expected_tensors, expected_types = read_gguf(golden(f"nanocodec-tiny.{outtype}.gguf"))
    assert metadata == expected_metadata
    assert types == expected_types
    for name, expected in expected_tensors.items():
        # The norm of the weight normalisation is a sum, whose order depends on numpy's build.
        np.testing.assert_allclose(tensors[name], expected, rtol=1e-3 if outtype == "f16" else 1e-6, err_msg=name)


def test_committed_file_has_the_published_layout(golden):
    metadata, tensors, types = read_gguf(golden("nanocodec-tiny.f16.gguf"))
    config = json.loads(metadata.pop("nano_codec.config_json"))
    assert config["audio_decoder"]["base_channels"] == 96
    for key in ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.name", "general.description"):
        metadata.pop(key)
    modules = "nemo.collections.tts.modules.audio_codec_modules"
    assert metadata == {
        "general.architecture": "nemo-nano-codec",
        "general.source.url": "https://huggingface.co/nvidia/nemo-nano-codec-22khz-1.89kbps-21.5fps",
        "general.tensor_data_layout": "ggml.conv1d/conv_transpose1d short names",
        "nano_codec.nemo_target": "nemo.collections.tts.models.audio_codec.AudioCodecModel",
        "nano_codec.nemo_version": "3.0.0",
        "nano_codec.decoder.target": f"{modules}.CausalHiFiGANDecoder",
        "nano_codec.decoder.activation": "half_snake",
        "nano_codec.decoder.output_activation": "clamp",
        "nano_codec.decoder.pad_mode": "zeros",
        "nano_codec.quantizer.target": f"{modules}.GroupFiniteScalarQuantizer",
        "nano_codec.sample_rate": 22050,
        "nano_codec.samples_per_frame": 1024,
        "nano_codec.frame_rate": 21.533203125,
        "nano_codec.num_codebooks": 8,
        "nano_codec.codebook_size": 2016,
        "nano_codec.codebook_dim_per_group": 4,
        "nano_codec.latent_dim": 32,
        "nano_codec.decoder.input_dim": 32,
        "nano_codec.decoder.base_channels": 96,
        "nano_codec.decoder.in_kernel_size": 7,
        "nano_codec.decoder.out_kernel_size": 3,
        "nano_codec.decoder.n_groups_equal_to_out_channels": True,
        "nano_codec.decoder.up_sample_rates": [8, 8, 4, 2, 2],
        "nano_codec.decoder.resblock_kernel_sizes": [3, 7, 11],
        "nano_codec.decoder.resblock_dilation_sizes": [1, 3, 5],
        "nano_codec.quantizer.num_levels_per_group": [8, 7, 6, 6],
        "nano_codec.quantizer.dim_base_index": [1, 8, 56, 336],
        "nano_codec.quantizer.scale": [4, 3, 3, 3],
        "nano_codec.quantizer.offset": [4, 3, 3, 3],
    }
    shapes = {name: array.shape for name, array in tensors.items()}
    expected = {
        "dec.pre.w": (96, 32, 7), "dec.pre.b": (1, 96, 1), "dec.post.w": (1, 3, 3), "dec.post.b": (1, 1, 1),
        "dec.post_act.alpha": (1, 1, 1), "dec.post_act.alpha_inv": (1, 1, 1), "q.fsq.codebook": (8, 2016, 4),
    }
    channels = (96, 48, 24, 12, 6, 3)
    for i, rate in enumerate((8, 8, 4, 2, 2)):
        inputs, outputs = channels[i], channels[i + 1]
        expected[f"dec.act.{i}.alpha"] = expected[f"dec.act.{i}.alpha_inv"] = (1, inputs // 2, 1)
        expected[f"dec.up.{i}.w"], expected[f"dec.up.{i}.b"] = (inputs, outputs, 2 * rate), (1, outputs, 1)
        for j, kernel in enumerate((3, 7, 11)):
            for m in range(3):
                block = f"dec.res.{i}.{j}.{m}"
                for act in ("ia", "sa"):
                    expected[f"{block}.{act}.alpha"] = expected[f"{block}.{act}.alpha_inv"] = (1, outputs // 2, 1)
                for conv in ("ic", "sc"):
                    expected[f"{block}.{conv}.w"] = (outputs, outputs, kernel)
                    expected[f"{block}.{conv}.b"] = (1, outputs, 1)
    assert shapes == expected and len(expected) == 387
    assert {name for name, kind in types.items() if kind == "F16"} == {n for n in expected if n.endswith(".w")}
    assert set(types.values()) == {"F16", "F32"}


def test_fsq_codebook_equals_nemos_bit_for_bit(golden):
    tensor = read_gguf(golden("nanocodec-tiny.f32.gguf"))[1]["q.fsq.codebook"]
    expected = np.load(golden("nanocodec-tiny.npz"))["fsq_codebook"]
    assert all(np.array_equal(book, expected) for book in tensor)


@needs_torch
def test_old_weight_norm_names_give_the_same_file(tmp_path):
    new = write_directory(tmp_path / "new", members(CODEC_CONFIG, codec_state()))
    old = write_directory(tmp_path / "old", members(CODEC_CONFIG, codec_state(old_names=True)))
    convert(new, tmp_path / "new.gguf", "f32")
    convert(old, tmp_path / "old.gguf", "f32")
    assert (tmp_path / "new.gguf").read_bytes() == (tmp_path / "old.gguf").read_bytes()


@needs_torch
def test_every_container_gives_the_same_file(tmp_path, small):
    contents = members(CODEC_CONFIG, codec_state())
    sources = [small, write_tar(tmp_path / "a.nemo", contents), write_tar(tmp_path / "b.nemo", contents, compress=True)]
    files = [convert(source, tmp_path / f"{index}.gguf").path.read_bytes() for index, source in enumerate(sources)]
    assert files[0] == files[1] == files[2]


@needs_torch
def test_kernels_are_what_torch_computes(tmp_path, small):
    import torch

    tensors = read_gguf(convert(small, tmp_path / "out.gguf", "f32").path)[1]
    state = codec_state()

    def effective(name: str) -> torch.Tensor:
        gain, direction = (state[f"audio_decoder.{name}.conv.parametrizations.weight.original{i}"] for i in (0, 1))
        return torch._weight_norm(direction, gain, 0)

    np.testing.assert_allclose(tensors["dec.pre.w"], effective("pre_conv").numpy(), rtol=1e-6)
    x = torch.randn(1, 8, 5, generator=torch.Generator().manual_seed(1))
    bias = state["audio_decoder.up_sample_conv_layers.0.conv.bias"]
    grouped = torch.nn.functional.conv_transpose1d(x, effective("up_sample_conv_layers.0"), bias, stride=3, groups=4)
    dense = torch.nn.functional.conv_transpose1d(
        x, torch.from_numpy(tensors["dec.up.0.w"]), torch.from_numpy(tensors["dec.up.0.b"]).ravel(), stride=3)
    np.testing.assert_allclose(dense.numpy(), grouped.numpy(), atol=1e-5)
    alpha = state["audio_decoder.activations.1.activation.snake_act.alpha"].numpy()
    np.testing.assert_array_equal(tensors["dec.act.1.alpha"], alpha)
    np.testing.assert_array_equal(tensors["dec.act.1.alpha_inv"], 1 / (alpha + np.float32(1e-9)))


@needs_torch
def test_ungrouped_upsamplers_are_stored_as_they_are(tmp_path):
    config = edited(CODEC_CONFIG, "audio_decoder.n_groups_equal_to_out_channels", False)
    state = codec_state(grouped=False)
    source = write_directory(tmp_path / "dense", members(config, state))
    metadata, tensors, _ = read_gguf(convert(source, tmp_path / "out.gguf", "f32").path)
    assert metadata["nano_codec.decoder.n_groups_equal_to_out_channels"] is False
    gain, direction = (state[f"audio_decoder.up_sample_conv_layers.0.conv.parametrizations.weight.original{i}"].numpy()
                       for i in (0, 1))
    np.testing.assert_allclose(tensors["dec.up.0.w"], fold_weight_norm(gain, direction), rtol=1e-6)


def test_dense_upsampler_by_its_definition():
    weight = np.arange(1, 4 * 3 * 2 + 1, dtype=np.float32).reshape(4, 3, 2)
    dense = dense_upsampler(weight, groups=2)
    expected = np.zeros((4, 6, 2), np.float32)
    for ci in range(4):
        for q in range(3):
            expected[ci, (ci // 2) * 3 + q] = weight[ci, q]
    np.testing.assert_array_equal(dense, expected)


def test_fold_weight_norm_known_answer():
    direction = np.array([[[3.0, 4.0]], [[0.0, 0.0]]], np.float32)
    folded = fold_weight_norm(np.array([[[10.0]], [[7.0]]], np.float32), direction)
    np.testing.assert_allclose(folded, [[[6.0, 8.0]], [[0.0, 0.0]]], rtol=1e-6)


def test_topology_sums_up_the_public_codec():
    codec = CodecTopology()
    assert codec.channels == (864, 432, 216, 108, 54, 27)
    assert (codec.samples_per_frame, codec.codebook_size, codec.latent_dim) == (1024, 2016, 32)
    assert codec.dim_base_index == (1, 8, 56, 336)
