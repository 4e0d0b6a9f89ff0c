"""What the converter refuses, by name, leaving nothing behind; and what it says without its optional packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import (
    CODEC_CONFIG,
    PREFIX,
    codec_state,
    edited,
    magpie_config,
    magpie_state,
    members,
    needs_torch,
    write_directory,
)

from pymagpie.convert import convert
from pymagpie.errors import ModelError, ModelNotFoundError


def refuse(source: Path, tmp_path: Path, message: str, error: type[Exception] = ModelError, **options: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(error, match=message) as caught:
        convert(source, target / "out.gguf", **options)
    assert "\n" not in str(caught.value)
    assert list(target.iterdir()) == []


@needs_torch
@pytest.mark.parametrize(("path", "value", "message"), [
    ("audio_decoder", ..., "no section 'audio_decoder'"),
    ("vector_quantizer", ..., "no section 'vector_quantizer'"),
    ("audio_decoder._target_", "x.HiFiGANDecoder", r"audio_decoder\._target_ is 'x\.HiFiGANDecoder'"),
    ("audio_decoder.activation", "lrelu", r"activation is 'lrelu', supported: half_snake"),
    ("audio_decoder.activation", ..., r"activation is 'lrelu'"),
    ("audio_decoder.pad_mode", "replicate", "pad_mode is 'replicate'"),
    ("audio_decoder.output_activation", "relu", "supported: clamp, tanh"),
    ("audio_decoder.base_channels", 10, "10 base channels cannot be halved 2 times"),
    ("audio_decoder.base_channels", "8", "base_channels must be an integer"),
    ("audio_decoder.base_channels", True, "base_channels must be an integer"),
    ("audio_decoder.up_sample_rates", [3, 0], "sizes must be positive and at most"),
    ("audio_decoder.up_sample_rates", [], "up_sample_rates has 0 entries"),
    ("audio_decoder.up_sample_rates", [3, 1], "samples_per_frame is 6, the upsampling rates multiply to 3"),
    ("audio_decoder.input_dim", 5, "input_dim is 5, the quantizer gives 4"),
    ("vector_quantizer._target_", "x.ResidualVQ", "vector_quantizer._target_ is"),
    ("vector_quantizer.num_levels_per_group", [5, 1], "FSQ levels must be at least 2"),
    ("vector_quantizer.num_levels_per_group", [4, 5], "num_levels' holds"),
    ("vector_quantizer.num_levels_per_group", [999999, 999999], "elements, at most"),
    ("vector_quantizer.num_groups", 3, "input_dim is 4, the quantizer gives 6"),
    ("target", "nemo.SomethingElse", "^$"),
])
def test_codec_configurations(tmp_path, path, value, message):
    if path == "target":
        config = edited(edited(CODEC_CONFIG, "target", value), "vector_quantizer", ...)
        message = "target is 'nemo.SomethingElse'; only MagpieTTS and NanoCodec"
    else:
        config = edited(CODEC_CONFIG, path, value)
    refuse(write_directory(tmp_path / "codec", members(config, codec_state())), tmp_path, message)


@needs_torch
def test_codec_tensors_missing_misshapen_or_not_finite(tmp_path):
    def with_state(name: str, state: dict) -> Path:
        return write_directory(tmp_path / name, members(CODEC_CONFIG, state))

    state = codec_state()
    del state["audio_decoder.post_conv.conv.bias"]
    with pytest.raises(ModelError, match="NanoCodec checkpoint lacks post_conv.conv.bias"):
        convert(with_state("a", state), tmp_path / "out.gguf")
    state = codec_state()
    state["audio_decoder.pre_conv.conv.bias"] = state["audio_decoder.pre_conv.conv.bias"][:7]
    with pytest.raises(ModelError, match=r"'pre_conv.conv.bias' has shape \(7,\), the configuration asks for \(8,\)"):
        convert(with_state("b", state), tmp_path / "out.gguf")
    state = codec_state()
    state["audio_decoder.pre_conv.conv.bias"][2] = float("nan")
    with pytest.raises(ModelError, match="'pre_conv.conv.bias' holds NaN"):
        convert(with_state("c", state), tmp_path / "out.gguf")
    state = codec_state()
    state["audio_decoder.pre_conv.conv.parametrizations.weight.original0"] *= 1e7
    with pytest.raises(ModelError, match=r"'dec.pre.w' holds \S+, which f16 cannot; use outtype f32"):
        convert(with_state("d", state), tmp_path / "out.gguf")
    assert not list(tmp_path.glob("out*")) and not list(tmp_path.glob(".out*"))


@needs_torch
def test_codec_has_no_q8_0_and_no_local_transformer(tmp_path):
    source = write_directory(tmp_path / "codec", members(CODEC_CONFIG, codec_state()))
    refuse(source, tmp_path, "'q8_0' is not available for a NanoCodec, allowed: f16, f32", ValueError, outtype="q8_0")
    with pytest.raises(ValueError, match="local_transformer_outtype is for MagpieTTS"):
        convert(source, tmp_path / "out.gguf", local_transformer_outtype="f32")


@needs_torch
@pytest.mark.parametrize(("path", "value", "message"), [
    ("target", "nemo.collections.tts.models.magpietts.MagpieTTSDecoderModel", "target is .*MagpieTTSDecoderModel"),
    ("model_type", "multi_encoder_context_tts", "model_type is 'multi_encoder_context_tts', supported: decoder_ce"),
    ("local_transformer_type", "maskgit", "local_transformer_type is 'maskgit', supported: autoregressive"),
    ("embedding_dim", 16, "encoder.d_model is 32, supported: 16"),
    ("encoder.is_causal", False, "encoder.is_causal is False"),
    ("decoder.use_learnable_pos_emb", ..., "decoder.use_learnable_pos_emb is False"),
    ("encoder.use_moe", True, "encoder.use_moe is True"),
    ("decoder.has_xattn", ..., "decoder.has_xattn is None"),
    ("decoder.xa_d_memory", 7, "decoder.xa_d_memory is 7"),
    ("decoder.d_ffn", 7, "decoder.d_ffn is 7, supported: 64"),
    ("decoder.n_layers", 3, "MagpieTTS checkpoint lacks decoder.layers.2.norm_self.weight"),
    ("decoder.n_layers", 1, "unknown architecture: decoder.layers.1"),
    ("decoder.n_layers", 10**9, "positive and below"),
    ("decoder.sa_n_heads", 5, "width 32 is not divisible by its 5 heads"),
    ("decoder.max_length_causal_mask", 25, r"position_embeddings.weight' has shape \(24, 32\)"),
    ("frame_stacking_factor", 3, "2 audio embedding tables do not divide into 3"),
    ("inference_parameters.estimate_alignment_from_layers", [0, 2], r"\[0, 2\] names layers outside 0..1"),
    ("inference_parameters.temperature", "hot", "temperature must be a number"),
    ("text_tokenizers.english_phoneme.g2p.phoneme_dict", f"nemo:{PREFIX}_other.dict", "lacks the tokeniser file"),
    ("text_tokenizers.english_phoneme.g2p.phoneme_dict", f"nemo:{PREFIX}_../../evil", "not a plain file name"),
    ("text_tokenizers.english_phoneme.g2p.phoneme_dict", f"nemo:{PREFIX}_manifest.json", "not a plain file name"),
])
def test_magpie_configurations(tmp_path, path, value, message):
    contents = members(edited(magpie_config(), path, value), magpie_state())
    contents[f"{PREFIX}_english.dict"] = b"A  a\n"
    contents[f"{PREFIX}_manifest.json"] = b"{}"
    refuse(write_directory(tmp_path / "model", contents), tmp_path, message)


@needs_torch
@pytest.mark.parametrize(("change", "message"), [
    (lambda state: state.pop("baked_context_embedding.weight"), "no baked_context_embedding.weight: only models with"),
    (lambda state: state.pop("text_embedding.weight"), "lacks text_embedding.weight"),
    (lambda state: state.update({"decoder.layers.0.pos_ff.router.weight": state["final_proj.bias"]}),
     "unknown architecture: decoder.layers.0.pos_ff.router.weight"),
    (lambda state: state["_baked_embedding_T"].add_(1), "'_baked_embedding_T' does not say 3"),
    (lambda state: state["baked_context_embedding_len"].add_(1), r"baked_context_embedding_len \[4, 3\] is outside"),
])
def test_magpie_tensors(tmp_path, change, message):
    state = magpie_state()
    change(state)
    contents = {**members(magpie_config(), state), f"{PREFIX}_english.dict": b"A  a\n"}
    refuse(write_directory(tmp_path / "model", contents), tmp_path, message)


@needs_torch
@pytest.mark.parametrize("speakers", [b"[]", b"{}", b"nope", b'{"A": 0}', b'{"A": 0, "B": 2}', b'{"A": "x", "B": 1}'])
def test_magpie_speaker_lists(tmp_path, speakers):
    contents = {**members(magpie_config(), magpie_state()), f"{PREFIX}_english.dict": b"", "a.speakers.json": speakers}
    refuse(write_directory(tmp_path / "model", contents), tmp_path, "speaker|not JSON")


@needs_torch
def test_failure_keeps_the_earlier_output(tmp_path):
    contents = {**members(magpie_config(), magpie_state()), f"{PREFIX}_english.dict": b"A  a\n"}
    source = write_directory(tmp_path / "model", contents)
    convert(source, tmp_path / "out.gguf")
    before = (tmp_path / "out.gguf").read_bytes(), (tmp_path / "out.assets" / "manifest.json").read_bytes()
    (source / f"{PREFIX}_english.dict").write_bytes(b"B  b\n")
    (source / "model_weights.ckpt").write_bytes(b"broken")
    with pytest.raises(ModelError):
        convert(source, tmp_path / "out.gguf")
    assert before == ((tmp_path / "out.gguf").read_bytes(), (tmp_path / "out.assets" / "manifest.json").read_bytes())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out.assets", "out.gguf"]


@needs_torch
def test_foreign_directory_in_place_of_the_assets(tmp_path):
    contents = {**members(magpie_config(), magpie_state()), f"{PREFIX}_english.dict": b"A  a\n"}
    source = write_directory(tmp_path / "model", contents)
    (tmp_path / "out.assets").mkdir()
    (tmp_path / "out.assets" / "thesis.txt").write_text("mine")
    with pytest.raises(ModelError, match="in the way of the tokeniser files"):
        convert(source, tmp_path / "out.gguf")
    assert (tmp_path / "out.assets" / "thesis.txt").read_text() == "mine" and not (tmp_path / "out.gguf").exists()


def test_arguments(tmp_path):
    with pytest.raises(ValueError, match="unknown outtype 'q4_0', allowed: f16, f32, q8_0"):
        convert(tmp_path, tmp_path / "out.gguf", "q4_0")
    with pytest.raises(ModelNotFoundError, match="no such checkpoint"):
        convert(tmp_path / "none.nemo", tmp_path / "out.gguf")
    with pytest.raises(FileNotFoundError, match="no such directory"):
        convert(tmp_path, tmp_path / "none" / "out.gguf")
    with pytest.raises(ModelError, match="no regular member 'model_config.yaml'"):
        convert(tmp_path, tmp_path / "out.gguf")


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from pymagpie.cli import main
sys.exit(main(["convert", {source!r}, "-o", {target!r}]))
"""


def test_without_torch_one_line_says_what_to_install(golden, tmp_path):
    code = WITHOUT_TORCH.format(source=str(golden("nanocodec-tiny.nemo")), target=str(tmp_path / "out.gguf"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 4 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and 'pip install "pymagpie[convert]"' in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_importing_the_converter_loads_no_torch():
    code = "import sys, pymagpie.convert, pymagpie.synthetic; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
