"""Models other than the public one, and models that must be refused before anything is created."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import reference
from codec_models import TINY, copy_gguf, snr

from pymagpie import NanoCodec
from pymagpie.errors import BackendError, ModelError, ModelNotFoundError
from pymagpie.ggml import GGUFFile
from pymagpie.ggml.bindings import ggml
from pymagpie.nanocodec import CodecConfig
from pymagpie.synthetic import write_nanocodec

TOPOLOGIES = {
    "other rates, levels and codebooks": dict(
        base_channels=48, up_sample_rates=(7, 3, 2), resblock_kernel_sizes=(5, 2), resblock_dilation_sizes=(1, 4),
        num_codebooks=13, num_levels=(5, 3), sample_rate=16000),
    "one tap everywhere": dict(
        base_channels=8, up_sample_rates=(2,), resblock_kernel_sizes=(1,), resblock_dilation_sizes=(1,),
        in_kernel_size=1, out_kernel_size=1, num_codebooks=1, num_levels=(3,)),
    "a rate of one": dict(base_channels=12, up_sample_rates=(1, 4), resblock_kernel_sizes=(3,),
                          resblock_dilation_sizes=(9,), num_codebooks=2, num_levels=(4, 4)),
    "dense upsamplers": dict(base_channels=16, up_sample_rates=(4, 2), resblock_kernel_sizes=(3,),
                             resblock_dilation_sizes=(1, 3), num_codebooks=2, num_levels=(8, 7), dense=True),
    "a wide first kernel": dict(base_channels=16, up_sample_rates=(3, 2), resblock_kernel_sizes=(3, 9),
                                resblock_dilation_sizes=(2,), in_kernel_size=13, out_kernel_size=5,
                                num_codebooks=3, num_levels=(2, 2, 2)),
    "tanh at the end": dict(base_channels=8, up_sample_rates=(2,), resblock_kernel_sizes=(3,),
                            resblock_dilation_sizes=(1,), num_codebooks=2, num_levels=(3,), output_activation="tanh"),
}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_any_topology_equals_the_numpy_reference(name: str, tmp_path: Path, device: str, kernels: str) -> None:
    path = write_nanocodec(tmp_path / "model.gguf", outtype="f32", seed=3, **TOPOLOGIES[name])
    with NanoCodec.load(path, device, threads=2, kernels=kernels) as codec:
        codes = np.random.default_rng(1).integers(0, codec.codebook_size, (11, codec.num_codebooks))
        audio = codec.decode(codes)
        assert audio.shape == (11 * codec.samples_per_frame,)
        assert snr(reference.decode(path, codes), audio) >= (100 if device == "cpu" else 70)
        streamed = np.concatenate(list(codec.stream(codes, 3)))
        exact = device == "cpu" and kernels != "batched"
        assert np.abs(streamed - audio).max() <= (0 if exact else 2e-4)


def plan_with(caches: int) -> dict[str, object]:
    """Metadata of a model that needs so many caches: two for the ends, one for each upsampler, two for each block."""
    stacks, odd = divmod(caches - 3, 2)
    assert odd == 0 or caches % 2 == 0
    keys = {"general.architecture": "nemo-nano-codec", "nano_codec.sample_rate": 16000,
            "nano_codec.num_codebooks": 2, "nano_codec.quantizer.num_levels_per_group": [4, 3],
            "nano_codec.decoder.base_channels": 64, "nano_codec.decoder.in_kernel_size": 3,
            "nano_codec.decoder.out_kernel_size": 3 if odd == 0 else 1,
            "nano_codec.decoder.up_sample_rates": [2], "nano_codec.samples_per_frame": 2,
            "nano_codec.decoder.resblock_kernel_sizes": [3], "nano_codec.decoder.resblock_dilation_sizes": [1] * stacks}
    if odd:
        keys["nano_codec.decoder.out_kernel_size"] = 1
        keys["nano_codec.decoder.resblock_dilation_sizes"] = [1] * ((caches - 2) // 2)
    return keys


def test_512_caches_are_accepted_and_513_refused() -> None:
    config = CodecConfig.from_metadata(plan_with(512))
    assert len(config.cache_plan()) == 512
    with pytest.raises(ModelError, match="513 caches; the limit is 512"):
        CodecConfig.from_metadata(plan_with(513))


def test_a_plan_over_the_limit_creates_nothing(tiny_path: Path, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    created = []
    for name in ("ggml_init", "ggml_backend_alloc_ctx_tensors", "ggml_backend_alloc_buffer", "ggml_gallocr_new",
                 "ggml_backend_dev_init"):
        original = getattr(ggml, name)
        monkeypatch.setattr(ggml, name, lambda *a, name=name, original=original: created.append(name) or original(*a))
    path = copy_gguf(tiny_path, tmp_path / "big.gguf", keys={
        "nano_codec.decoder.resblock_kernel_sizes": [3] * 16, "nano_codec.decoder.resblock_dilation_sizes": [1] * 16})
    with pytest.raises(ModelError, match="needs 1028 caches; the limit is 512"):
        NanoCodec.load(path, "cpu", 1)
    assert created == []
    NanoCodec.load(tiny_path, "cpu", 1).decode(np.zeros((1, 2), np.int32))
    assert {"ggml_init", "ggml_backend_alloc_ctx_tensors", "ggml_gallocr_new"} <= set(created)  # the count does count


@pytest.mark.parametrize(("keys", "message"), [
    ({"general.architecture": "llama"}, "not a NanoCodec model"),
    ({"nano_codec.decoder.activation": "elu"}, "supported: half_snake"),
    ({"nano_codec.sample_rate": None}, "'nano_codec.sample_rate' is missing"),
    ({"nano_codec.samples_per_frame": 5}, "multiply to 4"),
    ({"nano_codec.num_codebooks": 0}, "num_codebooks is 0; it must be a whole number from 1 to 256"),
    ({"nano_codec.num_codebooks": 3}, "input_dim"),
    ({"nano_codec.decoder.up_sample_rates": [0, 4]}, "up_sample_rates"),
    ({"nano_codec.decoder.base_channels": 4}, "cannot be halved"),
    ({"nano_codec.quantizer.num_levels_per_group": [65536, 65536]}, "more than a 32-bit integer|input_dim|codebook"),
    ({"nano_codec.decoder.base_channels": 16}, "shape")])
def test_wrong_metadata_is_named(tiny_path: Path, tmp_path: Path, keys: dict[str, object], message: str) -> None:
    if "general.architecture" in keys:
        with GGUFFile.open(tiny_path) as file, pytest.raises(ModelError, match=message):
            CodecConfig.from_metadata({**file.metadata, **keys})
        return
    path = copy_gguf(tiny_path, tmp_path / "wrong.gguf", keys=keys)
    with pytest.raises(ModelError, match=message):
        NanoCodec.load(path, "cpu", 1)


def test_a_missing_tensor_is_named(tiny_path: Path, tmp_path: Path) -> None:
    path = copy_gguf(tiny_path, tmp_path / "short.gguf", drop=("dec.up.1.b",))
    with pytest.raises(ModelError, match="'dec.up.1.b' is missing"):
        NanoCodec.load(path, "cpu", 1)


@pytest.mark.parametrize(("array", "message"), [
    (np.zeros((1, 4, 1), np.int32), "has type i32"),
    (np.zeros((1, 5, 1), np.float32), "has shape")])
def test_a_wrong_tensor_is_named(tiny_path: Path, tmp_path: Path, array: np.ndarray, message: str) -> None:
    path = copy_gguf(tiny_path, tmp_path / "wrong.gguf", replace={"dec.up.0.b": array})
    with pytest.raises(ModelError, match=f"'dec.up.0.b' {message}"):
        NanoCodec.load(path, "cpu", 1)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no\.gguf does not exist"):
        NanoCodec.load(tmp_path / "no.gguf", "cpu")


def test_too_little_memory_is_said_with_both_figures(tiny: NanoCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    from pymagpie.ggml import Device
    monkeypatch.setattr(Device, "memory", lambda self: (1000, 2000))
    with pytest.raises(BackendError, match=r"needs .* on CPU, which has 1000 bytes free"):
        tiny.decode(np.zeros((3, 2), np.int32))
    with pytest.raises(BackendError, match=r"the codec's weights needs .* 1000 bytes free"):
        NanoCodec.load(tiny.path, "cpu", 1)


def test_the_synthetic_tiny_model_is_neither_silent_nor_clipped(tmp_path: Path) -> None:
    path = write_nanocodec(tmp_path / "model.gguf", base_channels=96)
    with NanoCodec.load(path, "cpu", 2) as codec:
        audio = codec.decode(np.random.default_rng(0).integers(0, codec.codebook_size, (20, 8)))
    assert 0.03 < np.sqrt((audio**2).mean()) < 0.35
    assert (np.abs(audio) >= 1).mean() < 1e-3


assert TINY["num_codebooks"] == 2  # the codes above have two columns
