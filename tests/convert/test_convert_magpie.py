"""Converting MagpieTTS checkpoints: keys, names, shapes, types and values of the published layout, and the assets."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checkpoints import (
    MAGPIE_TOPOLOGY,
    PREFIX,
    magpie_config,
    magpie_state,
    members,
    needs_torch,
    read_gguf,
    write_directory,
    write_tar,
)

from pymagpie.convert import convert
from pymagpie.convert.magpie import read_inference
from pymagpie.convert.magpie_layout import InferenceDefaults, MagpieTopology

DICTIONARY = b"HELLO  h@lo\n"


def checkpoint(path: Path, topology: MagpieTopology = MAGPIE_TOPOLOGY, speakers: str | None = None,
               **inference: object) -> Path:
    contents = members(magpie_config(topology, **inference), magpie_state(topology))
    contents[f"{PREFIX}_english.dict"] = DICTIONARY
    if speakers is not None:
        contents[f"{PREFIX}_model.nemo.speakers.json"] = speakers.encode()
    return write_directory(path, contents)


@needs_torch
@pytest.mark.parametrize("name", ["magpie-tiny", "magpie-tiny-fs2"])
def test_golden_archive_gives_the_committed_file(golden, tmp_path, name):
    result = convert(golden(f"{name}.nemo"), tmp_path / "out.f32.gguf", "f32")
    assert result.path.read_bytes() == golden(f"{name}.f32.gguf").read_bytes()
    assert result.kind == "magpietts" and result.assets == tmp_path / "out.f32.assets"


@pytest.mark.parametrize(("name", "expected"), [
    ("magpie-tiny", {"frame_stacking_factor": 1, "embedding_dim": 64, "ffn_dim": 128, "context_length": 160,
                     "speaker_names": ["Aria", "Jason", "John"], "baked_context_lens": [11, 11, 11],
                     "baked_context_length": 11, "baked_context_dim": 64, "baked_speakers": 3,
                     "encoder.layers": 2, "encoder.heads": 4, "decoder.layers": 3, "decoder.heads": 4,
                     "decoder.cross_head_dim": 32, "local_transformer.layers": 1, "local_transformer.heads": 1,
                     "local_transformer.hidden_dim": 32, "local_transformer.context_length": 10,
                     "inference.max_decoder_steps": 48, "inference.attention_prior_lookahead_window": 5,
                     "inference.estimate_alignment_from_layers": [1], "inference.apply_prior_to_layers": [1, 2]}),
    ("magpie-tiny-fs2", {"frame_stacking_factor": 2, "embedding_dim": 32, "ffn_dim": 96, "context_length": 128,
                         "speaker_names": ["Aria", "Jason"], "baked_context_lens": [7, 7],
                         "baked_context_length": 7, "baked_context_dim": 32, "baked_speakers": 2,
                         "encoder.layers": 2, "encoder.heads": 2, "decoder.layers": 3, "decoder.heads": 2,
                         "decoder.cross_head_dim": 24, "local_transformer.layers": 2, "local_transformer.heads": 2,
                         "local_transformer.hidden_dim": 32, "local_transformer.context_length": 18,
                         "inference.max_decoder_steps": 64, "inference.attention_prior_lookahead_window": 6,
                         "inference.estimate_alignment_from_layers": [0, 2],
                         "inference.apply_prior_to_layers": [1, 2]}),
])
def test_committed_files_have_the_published_keys(golden, name, expected):
    metadata = read_gguf(golden(f"{name}.f32.gguf"))[0]
    assert metadata.pop("general.architecture") == "magpietts"
    found = {key.removeprefix("magpietts."): value for key, value in metadata.items() if key.startswith("magpietts.")}
    assert json.loads(found.pop("config_json"))["nemo_version"] == "3.0.0"
    assert found == {
        "nemo_target": "nemo.collections.tts.models.magpietts.MagpieTTSModel", "nemo_version": "3.0.0",
        "model_type": "decoder_ce", "codec_model": "nvidia/nemo-nano-codec-22khz-1.89kbps-21.5fps",
        "text_vocab_size": 585, "audio_codebooks": 8, "audio_codebook_size": 2016, "audio_vocab_size": 2024,
        "audio_bos_id": 2016, "audio_eos_id": 2017, "context_audio_bos_id": 2018, "context_audio_eos_id": 2019,
        "mask_token_id": 2020, "encoder.kernel_size": 3, "decoder.kernel_size": 1, "decoder.cross_heads": 1,
        "inference.temperature": pytest.approx(0.6), "inference.topk": 80, "inference.cfg_scale": 2.5,
        "inference.min_generated_frames": 4, "inference.apply_attention_prior": True,
        "inference.attention_prior_epsilon": pytest.approx(0.1), "inference.start_prior_after_n_audio_steps": 0,
        "inference.attention_prior_advance_threshold": 8, "inference.attention_prior_decay_threshold": 10,
        **expected,
    }


@needs_torch
@pytest.mark.parametrize("outtype", ["f32", "f16", "q8_0"])
def test_tensors_names_shapes_types_and_values(tmp_path, outtype):
    import gguf

    path = convert(checkpoint(tmp_path / "model"), tmp_path / "out.gguf", outtype).path
    _, tensors, types = read_gguf(path)
    state = {name: tensor.numpy() for name, tensor in magpie_state().items()}
    tolerance = {"f32": 0.0, "f16": 1e-3, "q8_0": 1e-2}[outtype]
    matrix = {"f32": "F32", "f16": "F16", "q8_0": "Q8_0"}[outtype]
    assert "encoder.layers.0.self_attention.causal_mask" not in tensors
    expected = {}
    for name, weight in state.items():
        if name.endswith("causal_mask"):
            continue
        if weight.ndim == 3:
            expected |= {f"{name}.k{tap}": weight[:, :, tap] for tap in range(weight.shape[2])}
        else:
            expected[name] = weight
    assert tensors.keys() == expected.keys()
    assert "encoder.layers.0.pos_ff.proj.conv.weight.k2" in expected
    for name, weight in expected.items():
        if weight.dtype == np.int64:
            assert types[name] == "I32"
            np.testing.assert_array_equal(tensors[name].ravel(), weight.ravel())
            continue
        kind = "F32" if weight.ndim == 1 or name.endswith(".bias") else matrix
        if kind == "Q8_0" and weight.shape[-1] % 32:
            kind = "F16"
        assert types[name] == kind, name
        values = tensors[name]
        if kind == "Q8_0":
            values = gguf.quants.dequantize(values, gguf.GGMLQuantizationType.Q8_0)
        assert values.shape == weight.shape, name
        np.testing.assert_allclose(values, weight, atol=tolerance * np.abs(weight).max(), rtol=0, err_msg=name)
    if outtype == "q8_0":
        # rows of 8 and of 16 are no multiple of a block
        assert types["decoder.layers.0.cross_attention.o_net.weight"] == "F16"
        assert types["local_transformer_out_projections.1.weight"] == "F16"


@needs_torch
def test_local_transformer_outtype(tmp_path):
    path = convert(checkpoint(tmp_path / "model"), tmp_path / "out.gguf", "q8_0", "f32").path
    types = read_gguf(path)[2]
    local = ("audio_embeddings.", "local_transformer.", "local_transformer_in_projection.",
             "local_transformer_out_projections.")
    assert {types[name] for name in types if name.startswith(local)} == {"F32"}
    assert types["text_embedding.weight"] == types["final_proj.weight"] == "Q8_0"


@needs_torch
def test_stacked_frames_without_input_projection(tmp_path):
    topology = replace(MAGPIE_TOPOLOGY, frame_stacking_factor=2, local_dim=32, local_layers=2, local_ffn_dim=128)
    metadata, tensors, _ = read_gguf(convert(checkpoint(tmp_path / "model", topology), tmp_path / "out.gguf").path)
    assert metadata["magpietts.frame_stacking_factor"] == 2 and metadata["magpietts.audio_codebooks"] == 2
    assert metadata["magpietts.local_transformer.context_length"] == 6
    assert "audio_embeddings.3.weight" in tensors and "local_transformer_in_projection.weight" not in tensors
    assert tensors["final_proj.weight"].shape == (4 * 20, 32)


@needs_torch
def test_voices_come_from_the_archive_in_index_order(tmp_path):
    source = checkpoint(tmp_path / "model", speakers='{"Zoe": 1, "Yan": 0}')
    metadata = read_gguf(convert(source, tmp_path / "out.gguf").path)[0]
    assert metadata["magpietts.speaker_names"] == ["Yan", "Zoe"]
    assert metadata["magpietts.baked_context_lens"] == [3, 2]


@needs_torch
@pytest.mark.parametrize(("count", "expected"), [
    (5, ["John", "Sofia", "Aria", "Jason", "Leo"]),
    (2, ["speaker-0", "speaker-1"]),
])
def test_voices_without_a_list_in_the_archive(tmp_path, count, expected):
    topology = replace(MAGPIE_TOPOLOGY, speaker_names=("x",) * count, baked_lengths=(3,) * count)
    metadata = read_gguf(convert(checkpoint(tmp_path / "model", topology), tmp_path / "out.gguf").path)[0]
    assert metadata["magpietts.speaker_names"] == expected


@needs_torch
def test_assets_and_manifest(tmp_path):
    source = write_tar(tmp_path / "model.nemo", {
        **members(magpie_config(), magpie_state()), f"{PREFIX}_english.dict": DICTIONARY, "unrelated.txt": b"x"})
    result = convert(source, tmp_path / "voice.f16.gguf")
    assert result.assets == tmp_path / "voice.f16.assets"
    assert sorted(path.name for path in result.assets.iterdir()) == ["english.dict", "manifest.json"]
    assert (result.assets / "english.dict").read_bytes() == DICTIONARY
    assert json.loads((result.assets / "manifest.json").read_text()) == {
        "text_tokenizers": magpie_config()["text_tokenizers"],
        "text_vocab_size": 40,
        "files": {"english.dict": hashlib.sha256(DICTIONARY).hexdigest()},
    }
    config = json.loads(read_gguf(result.path)[0]["magpietts.config_json"])
    assert config["text_tokenizers"]["english_phoneme"]["g2p"]["home"] == "${oc.env:HOME}"  # left as text


@needs_torch
def test_assets_of_an_earlier_conversion_are_replaced(tmp_path):
    source = checkpoint(tmp_path / "model")
    convert(source, tmp_path / "out.gguf")
    (tmp_path / "out.assets" / "stale.dict").write_bytes(b"")
    convert(source, tmp_path / "out.gguf")
    assert sorted(path.name for path in (tmp_path / "out.assets").iterdir()) == ["english.dict", "manifest.json"]


def test_prior_settings_under_old_and_new_names():
    old = {"prior_epsilon": 0.3, "lookahead_window_size": 9}
    new = {"attention_prior_epsilon": 0.2, "attention_prior_lookahead_window": 7}
    assert read_inference({"inference_parameters": old}).attention_prior_epsilon == 0.3
    assert read_inference({"inference_parameters": old}).attention_prior_lookahead_window == 9
    both = read_inference({"inference_parameters": {**old, **new}})
    assert (both.attention_prior_epsilon, both.attention_prior_lookahead_window) == (0.2, 7)


def test_settings_that_a_checkpoint_lacks_are_nemos():
    defaults = read_inference({})
    assert defaults == InferenceDefaults()
    assert (defaults.temperature, defaults.topk, defaults.cfg_scale, defaults.max_decoder_steps) == (0.7, 80, 2.5, 500)
    assert read_inference({"inference_parameters": {"apply_prior_to_layers": None}}).apply_prior_to_layers is None


@needs_torch
def test_absent_layer_lists_have_no_key(tmp_path):
    source = checkpoint(tmp_path / "model", estimate_alignment_from_layers=[1])
    metadata = read_gguf(convert(source, tmp_path / "out.gguf").path)[0]
    assert metadata["magpietts.inference.estimate_alignment_from_layers"] == [1]
    assert "magpietts.inference.apply_prior_to_layers" not in metadata


def test_full_size_topologies_have_the_published_sizes():
    """Parameter counts of spec 1.4; tensors of a GGUF include the taps of the FFN kernels and three size entries."""
    from pymagpie.synthetic.acoustic import SIZES

    def totals(topology: MagpieTopology) -> tuple[int, int]:
        shapes = dict(topology.shapes())
        tensors = sum(shape[2] if len(shape) == 3 else 1 for shape in shapes.values()) + 3
        return tensors, sum(int(np.prod(shape)) for shape in shapes.values())

    assert totals(SIZES["v2602"]) == (236, 224_208_256)
    assert totals(SIZES["v2607"]) == (264, 284_200_192)

