"""Synthetic acoustic models: the published layout, seeded bytes, and speech-like behaviour under greedy decoding."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from pymagpie import AcousticModel
from pymagpie.convert.magpie_layout import MagpieTopology, tensor_outtype
from pymagpie.errors import ModelError
from pymagpie.ggml import GGUFFile
from pymagpie.synthetic import write_magpie
from pymagpie.synthetic.acoustic import SIZES


def text(length: int, vocab: int = 2362, seed: int = 1) -> list[int]:
    return [*np.random.default_rng(seed).integers(0, vocab - 2, length - 1).tolist(), vocab - 1]


def greedy(model: AcousticModel, tokens: list[int], **options: object) -> tuple[np.ndarray, str]:
    generation = model.generate(tokens, temperature=0.0, seed=0, **options)
    codes = np.array(list(generation))
    return codes, generation.result.end_reason


@pytest.fixture(scope="module")
def speaking(tmp_path_factory):
    path = write_magpie(tmp_path_factory.mktemp("models") / "a.gguf", outtype="f32")
    with AcousticModel.load(path, device="cpu", threads=1) as model:
        yield model


def test_same_arguments_give_the_same_bytes(tmp_path):
    paths = [write_magpie(tmp_path / f"{index}.gguf", seed=seed) for index, seed in enumerate((3, 3, 4))]
    first, second, other = (path.read_bytes() for path in paths)
    assert first == second and first != other


def test_layout_equals_that_of_a_converted_model(tmp_path, golden):
    """The golden model has other vocabularies, positions and speakers; everything else is the same."""
    path = write_magpie(tmp_path / "a.gguf", outtype="f32")
    with GGUFFile.open(path) as file, GGUFFile.open(golden("magpie-tiny.f32.gguf")) as converted:
        assert file.tensors.keys() == converted.tensors.keys()
        different = {name for name in file.tensors if file.info(name).ne != converted.info(name).ne}
        assert different == {"text_embedding.weight", "encoder.position_embeddings.weight",
                             "decoder.position_embeddings.weight", "baked_context_embedding.weight",
                             "baked_context_embedding_len"}
        layers = {"magpietts.inference.estimate_alignment_from_layers", "magpietts.inference.apply_prior_to_layers"}
        assert file.metadata.keys() == converted.metadata.keys() - layers
        assert file.metadata["magpietts.speaker_names"] == ["John", "Sofia", "Aria", "Jason", "Leo"]


def payload(topology: MagpieTopology, outtype: str) -> int:
    """Bytes of all tensors, without writing them."""
    total = 4 * (2 + topology.speakers)
    for name, shape in topology.shapes():
        kind = tensor_outtype(name, len(shape), outtype, outtype)
        total += math.prod(shape) * (2 if kind == "f16" else 4)
    return total


def test_full_size_has_the_published_payload():
    assert payload(SIZES["v2602"], "f16") == 448_578_076  # spec 1.4


def test_greedy_speech_follows_the_text_and_ends(speaking):
    """Two frames a token, as asked; the last frames are cut by the attention's arrival at the end."""
    for tokens in (8, 30):
        codes, reason = greedy(speaking, text(tokens))
        assert reason == "eos" and 2 * tokens - 6 <= len(codes) <= 2 * tokens + 2


def test_greedy_codes_do_not_repeat(speaking):
    codes, _ = greedy(speaking, text(30))
    assert len({tuple(frame) for frame in codes.tolist()}) > 0.7 * len(codes)
    assert all(len(set(codes[:, book].tolist())) > 10 for book in range(codes.shape[1]))


def test_voice_and_text_matter(speaking):
    codes, _ = greedy(speaking, text(10))
    assert not np.array_equal(codes, greedy(speaking, text(10), voice="Leo")[0])
    assert not np.array_equal(codes, greedy(speaking, text(10, seed=2))[0])


@pytest.mark.parametrize("rules", ["nemo", "streaming"])
def test_eos_wins_at_the_step_asked_for(tmp_path, rules):
    path = write_magpie(tmp_path / "a.gguf", eos=7, seed=1)
    with AcousticModel.load(path, device="cpu", threads=1) as model:
        codes, reason = greedy(model, text(20), rules=rules)
        assert (len(codes), reason) == (7, "eos")
        codes, reason = greedy(model, text(20), rules=rules, min_frames=0, use_local_transformer=False)
        assert (len(codes), reason) == (7, "eos")


def test_eos_from_the_first_step_leaves_the_minimum(tmp_path):
    path = write_magpie(tmp_path / "a.gguf", eos=0)
    with AcousticModel.load(path, device="cpu", threads=1) as model:
        assert len(greedy(model, text(20))[0]) == 4


def test_eos_never_runs_to_the_limit(tmp_path):
    path = write_magpie(tmp_path / "a.gguf", eos="never", seed=2)
    with AcousticModel.load(path, device="cpu", threads=1) as model:
        codes, reason = greedy(model, text(6), rules="nemo", use_prior=False, max_steps=60)
        assert (len(codes), reason) == (60, "max_steps")
        assert len({tuple(frame) for frame in codes.tolist()}) > 20


def test_stacked_frames(tmp_path):
    path = write_magpie(tmp_path / "a.gguf", frame_stacking_factor=2, local_dim=64, local_ffn_dim=256, local_heads=4)
    with GGUFFile.open(path) as file:
        assert "local_transformer_in_projection.weight" not in file.tensors
    with AcousticModel.load(path, device="cpu", threads=1) as model:
        codes, reason = greedy(model, text(20))
        assert model.frames_per_step == 2 and reason == "eos" and 34 <= len(codes) <= 42


def test_q8_0_behaves_alike(tmp_path):
    path: Path = write_magpie(tmp_path / "a.gguf", outtype="q8_0")
    with AcousticModel.load(path, device="cpu", threads=1) as model:
        codes, reason = greedy(model, text(20))
        assert reason == "eos" and 34 <= len(codes) <= 42


def test_refusals(tmp_path):
    path = tmp_path / "a.gguf"
    for options, message in (
        ({"size": "huge"}, "size 'huge' is unknown, allowed: tiny, v2602, v2607"),
        ({"outtype": "q4_0"}, "unknown outtype 'q4_0'"),
        ({"eos": -1}, "eos must be 'text', 'never' or a step"),
        ({"eos": "soon"}, "eos must be"),
        ({"frames_per_token": 0}, "frames_per_token must be positive"),
        ({"colour": 3}, "unknown topology fields: colour"),
    ):
        with pytest.raises(ValueError, match=message):
            write_magpie(path, **options)
    with pytest.raises(ModelError, match="not divisible by its 5 heads"):
        write_magpie(path, decoder_heads=5)
    assert not path.exists()
