"""Synthetic codecs: the published layout, seeded bytes, and audio that can be heard."""

from __future__ import annotations

import numpy as np
import pytest

from pymagpie import NanoCodec
from pymagpie.errors import ModelError
from pymagpie.ggml import GGUFFile
from pymagpie.synthetic import write_nanocodec

OTHER = {
    "base_channels": 48,
    "sample_rate": 16000,
    "up_sample_rates": (5, 4, 3, 2),
    "resblock_kernel_sizes": (3, 5),
    "resblock_dilation_sizes": (1, 2),
    "in_kernel_size": 5,
    "out_kernel_size": 7,
    "num_codebooks": 3,
    "num_levels": (5, 5, 5),
}


def test_same_arguments_give_the_same_bytes(tmp_path):
    paths = [write_nanocodec(tmp_path / f"{index}.gguf", seed=seed) for index, seed in enumerate((3, 3, 4))]
    first, second, other = (path.read_bytes() for path in paths)
    assert first == second and first != other


def test_layout_equals_that_of_a_converted_codec(tmp_path, golden):
    path = write_nanocodec(tmp_path / "a.gguf")
    with GGUFFile.open(path) as file, GGUFFile.open(golden("nanocodec-tiny.f16.gguf")) as converted:
        assert {name: (info.ne, info.type) for name, info in file.tensors.items()} == {
            name: (info.ne, info.type) for name, info in converted.tensors.items()}
        own = ("general.name", "general.description", "nano_codec.nemo_version", "nano_codec.config_json")
        assert file.metadata.keys() == converted.metadata.keys()
        assert all(file.metadata[key] == converted.metadata[key] for key in file.metadata if key not in own)
        np.testing.assert_array_equal(file.read("q.fsq.codebook"), converted.read("q.fsq.codebook"))


def test_full_size_has_the_published_payload(tmp_path):
    with GGUFFile.open(write_nanocodec(tmp_path / "a.gguf", base_channels=864)) as file:
        assert sum(info.nbytes for info in file.tensors.values()) == 78_785_262  # spec 2.4
        assert file.info("dec.up.0.w").shape == (864, 432, 16)


@pytest.mark.parametrize("options", [{"seed": 0}, {"seed": 1, "outtype": "f32"}, {"seed": 2, "dense": True}, OTHER],
                         ids=["f16", "f32", "dense", "other topology"])
def test_audio_is_neither_silent_nor_clipped(tmp_path, options):
    path = write_nanocodec(tmp_path / "a.gguf", **options)
    with NanoCodec.load(path, device="cpu", threads=1) as codec:
        codes = np.random.default_rng(7).integers(0, codec.codebook_size, (16, codec.num_codebooks))
        audio = codec.decode(codes)
        assert (codec.sample_rate, codec.samples_per_frame) == ((16000, 120) if options is OTHER else (22050, 1024))
    assert 0.04 < np.sqrt(np.mean(np.square(audio))) < 0.35
    assert np.mean(np.abs(audio) >= 1) < 0.01
    assert audio.std() > 0.03  # not a constant


def test_dense_upsamplers_have_no_zeros_and_grouped_ones_are_diagonal(tmp_path):
    with GGUFFile.open(write_nanocodec(tmp_path / "a.gguf", dense=True, outtype="f32")) as file:
        assert file.metadata["nano_codec.decoder.n_groups_equal_to_out_channels"] is False
        assert np.count_nonzero(file.read("dec.up.0.w") == 0) == 0
    with GGUFFile.open(write_nanocodec(tmp_path / "b.gguf", outtype="f32")) as file:
        kernel = file.read("dec.up.4.w")
        assert [sorted(set(np.nonzero(kernel[ci])[0])) for ci in range(6)] == [[0], [0], [1], [1], [2], [2]]


def test_refusals(tmp_path):
    path = tmp_path / "a.gguf"
    with pytest.raises(ValueError, match="'q8_0' is not available"):
        write_nanocodec(path, outtype="q8_0")
    with pytest.raises(ModelError, match="100 base channels cannot be halved"):
        write_nanocodec(path, base_channels=100)
    with pytest.raises(ModelError, match="the last stage needs at least 2 channels"):
        write_nanocodec(path, base_channels=32)
    with pytest.raises(ModelError, match="sizes must be positive"):
        write_nanocodec(path, num_codebooks=0)
    assert not path.exists()
