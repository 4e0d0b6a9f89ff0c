"""Metadata of acoustic models: what is read, and what is refused before any native call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pymagpie.errors import ModelError
from pymagpie.ggml import GGUFFile
from pymagpie.magpie import MagpieConfig


@pytest.fixture(scope="module")
def metadata(path: Path) -> dict[str, Any]:
    with GGUFFile.open(path) as file:
        return file.metadata


def test_known_values(name: str, metadata: dict[str, Any]) -> None:
    config = MagpieConfig.from_metadata(metadata)
    stacked = name.endswith("fs2")
    assert config.frames_per_step == (2 if stacked else 1)
    assert config.slots == (16 if stacked else 8)
    assert (config.vocab_size, config.audio_bos, config.audio_eos) == (2024, 2016, 2017)
    assert (config.text_vocab_size, config.text_bos, config.text_eos) == (585, 583, 584)
    assert config.context_frames == (7 if stacked else 11)
    assert config.default_steps == (32 if stacked else 48)
    assert config.inference.attention_prior_lookahead_window == (6 if stacked else 5)
    assert config.inference.estimate_alignment_from_layers == ((0, 2) if stacked else (1,))
    assert config.inference.apply_prior_to_layers == (1, 2)


@pytest.mark.parametrize(("key", "value"), [
    ("general.architecture", "llama"), ("magpietts.model_type", "decoder_context_tts"),
    ("magpietts.embedding_dim", 0), ("magpietts.embedding_dim", "64"), ("magpietts.embedding_dim", True),
    ("magpietts.audio_codebooks", 1 << 20), ("magpietts.audio_bos_id", 3), ("magpietts.audio_vocab_size", 2016),
    ("magpietts.decoder.heads", 5), ("magpietts.decoder.layers", 10_000), ("magpietts.decoder.kernel_size", 3),
    ("magpietts.baked_context_length", 1 << 15), ("magpietts.baked_context_lens", [0, 0, 0]),
    ("magpietts.speaker_names", ["A"]), ("magpietts.speaker_names", ["A", "A", "A"]),
    ("magpietts.frame_stacking_factor", -1), ("magpietts.inference.temperature", float("nan")),
    ("magpietts.inference.topk", 0), ("magpietts.inference.apply_prior_to_layers", [99]),
    ("magpietts.inference.apply_attention_prior", 1), ("magpietts.config_json", "{"), ("magpietts.config_json", 3),
    ("magpietts.text_vocab_size", 2)])
def test_wrong_value_is_named(metadata: dict[str, Any], key: str, value: Any) -> None:
    with pytest.raises(ModelError, match=key.rsplit(".", 1)[-1].replace("embedding_dim", "embedding_dim")):
        MagpieConfig.from_metadata({**metadata, key: value})


def test_every_required_key_is_missed(metadata: dict[str, Any]) -> None:
    optional = 0
    for key in metadata:
        fewer = {other: value for other, value in metadata.items() if other != key}
        try:
            MagpieConfig.from_metadata(fewer)
            optional += 1
        except ModelError as error:
            assert key in str(error)
    assert optional < len(metadata)


def test_old_file_takes_prior_settings_from_config_json(metadata: dict[str, Any]) -> None:
    old = {key: value for key, value in metadata.items() if not key.startswith("magpietts.inference.")}
    section = {"apply_attention_prior": True, "prior_epsilon": 0.25, "lookahead_window_size": 9,
               "apply_prior_to_layers": [2], "estimate_alignment_from_layers": None}
    old["magpietts.config_json"] = json.dumps({"inference_parameters": section})
    inference = MagpieConfig.from_metadata(old).inference
    assert inference.attention_prior_epsilon == 0.25
    assert inference.attention_prior_lookahead_window == 9
    assert inference.apply_prior_to_layers == (2,)
    assert inference.estimate_alignment_from_layers == (0, 1, 2)


def test_omitted_layer_list_means_all_layers(metadata: dict[str, Any]) -> None:
    fewer = {key: value for key, value in metadata.items() if not key.endswith("apply_prior_to_layers")}
    assert MagpieConfig.from_metadata(fewer).inference.apply_prior_to_layers == (0, 1, 2)
