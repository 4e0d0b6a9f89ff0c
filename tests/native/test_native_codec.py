"""The codec on the native kernels: parity, streaming, threads, and every topology that the stock path has."""

from __future__ import annotations

import numpy as np
import pytest
from operands import RUNNER

from pymagpie import NanoCodec, native
from pymagpie.errors import CapabilityError
from pymagpie.ggml import Backend, custom
from pymagpie.nanocodec import native_layers
from pymagpie.synthetic import write_nanocodec

if native.load() is None or RUNNER:
    pytest.skip(f"native library: {native.status().reason or 'not in this process'}", allow_module_level=True)

sets = pytest.mark.parametrize("isa", native.instruction_sets())


def load(path, monkeypatch=None, isa=None, threads=2, kernels="native"):
    if isa:
        monkeypatch.setenv("PYMAGPIE_INSTRUCTION_SET", isa)
    return NanoCodec.load(path, device="cpu", threads=threads, kernels=kernels)


def snr(audio, reference):
    return 10 * np.log10(np.sum(reference**2) / np.sum((audio - reference) ** 2))


@sets
@pytest.mark.parametrize(("file", "least"), [("nanocodec-tiny.f32.gguf", 100), ("nanocodec-tiny.f16.gguf", 50)])
def test_golden_parity(isa, file, least, golden, monkeypatch):
    arrays = np.load(golden("nanocodec-tiny.npz"))
    with load(golden(file), monkeypatch, isa) as codec:
        assert codec.kernels == "native" and codec.decoder.instruction_set == isa
        for frames in (37, 3, 1):
            audio, reference = codec.decode(arrays[f"t{frames}_codes"]), arrays[f"t{frames}_audio_f64"]
            assert snr(audio, reference) >= least
            if least == 100:
                assert np.abs(audio - reference).max() <= 1e-5


@sets
def test_streams_and_threads_give_the_same_bits(isa, golden, monkeypatch):
    codes = np.load(golden("nanocodec-tiny.npz"))["t37_codes"]
    with load(golden("nanocodec-tiny.f32.gguf"), monkeypatch, isa, threads=1) as codec:
        whole = codec.decode(codes)
    with load(golden("nanocodec-tiny.f32.gguf"), monkeypatch, isa, threads=2) as codec:
        np.testing.assert_array_equal(codec.decode(codes), whole)
        for frames in (1, 2, 3, 4, 7, 16):
            np.testing.assert_array_equal(np.concatenate(list(codec.stream(codes, frames))), whole)
    for threads in (3, 5):
        with load(golden("nanocodec-tiny.f32.gguf"), monkeypatch, isa, threads=threads) as codec:
            np.testing.assert_array_equal(codec.decode(codes[:3]), whole[:3 * codec.samples_per_frame])


TOPOLOGIES = {
    "odd channels": {"base_channels": 52, "up_sample_rates": (3, 2)},
    "one channel of snake": {"base_channels": 8, "up_sample_rates": (2, 2)},
    "kernels of one tap": {"base_channels": 32, "up_sample_rates": (2, 1), "in_kernel_size": 1, "out_kernel_size": 1,
                           "resblock_kernel_sizes": (1, 5), "resblock_dilation_sizes": (2,)},
    "one stack": {"base_channels": 40, "up_sample_rates": (13,), "resblock_kernel_sizes": (4,),
                  "resblock_dilation_sizes": (1, 7)},
    "many stacks": {"base_channels": 32, "up_sample_rates": (2,), "resblock_kernel_sizes": (2, 3, 4, 5, 6)},
    "dense upsamplers": {"base_channels": 48, "up_sample_rates": (3, 2), "dense": True},
    "other codebooks": {"base_channels": 32, "up_sample_rates": (2, 2), "num_codebooks": 5, "num_levels": (9, 5, 3)},
}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_topology_equals_the_stock_path(name, tmp_path):
    path = write_nanocodec(tmp_path / "codec.gguf", outtype="f32", seed=3, **TOPOLOGIES[name])
    with load(path) as codec, load(path, kernels="stock") as stock:
        codes = np.random.default_rng(1).integers(0, codec.codebook_size, (11, codec.num_codebooks))
        audio, reference = codec.decode(codes), stock.decode(codes)
        assert np.abs(reference).max() > 0.01
        np.testing.assert_allclose(audio, reference, rtol=0, atol=2e-5)
        np.testing.assert_array_equal(np.concatenate(list(codec.stream(codes, 2, first_chunk_frames=1))), audio)


def test_auto_takes_the_native_kernels(golden):
    with load(golden("nanocodec-tiny.f32.gguf"), kernels="auto") as codec:
        assert codec.kernels == "native"


def test_an_unknown_instruction_set_is_named(golden, monkeypatch):
    with pytest.raises(ValueError, match="'mmx' is not available; this CPU and build have: plain"):
        load(golden("nanocodec-tiny.f32.gguf"), monkeypatch, "mmx")


def test_an_unknown_ggml_gets_the_stock_path(golden, monkeypatch):
    custom.tensor_layout.cache_clear()
    monkeypatch.setattr(custom, "KNOWN_VERSIONS", ("0.0.1",))
    try:
        with load(golden("nanocodec-tiny.f32.gguf"), kernels="auto") as codec:
            assert codec.kernels == "stock"
        with pytest.raises(CapabilityError, match="custom ops are known for ggml 0.0.1"):
            load(golden("nanocodec-tiny.f32.gguf"))
        with Backend("cpu", 1) as backend:
            assert "0.0.1" in native_layers.unavailable(backend)
    finally:
        monkeypatch.undo()
        custom.tensor_layout.cache_clear()


def test_a_moved_field_is_noticed(monkeypatch):
    """The offsets are compared with a tensor that ggml made."""
    class Field:
        offset = 16

    class Structure(custom.ggml.ggml_tensor):
        nb = Field()

    custom.tensor_layout.cache_clear()
    monkeypatch.setattr(custom.ggml, "ggml_tensor", Structure)
    try:
        with pytest.raises(CapabilityError, match="keeps nb of a tensor elsewhere"):
            custom.tensor_layout()
    finally:
        monkeypatch.undo()
        custom.tensor_layout.cache_clear()


def test_torch_agrees(golden):
    pytest.importorskip("torch")
    from pymagpie.nanocodec.torch_decoder import TorchDecoder

    codes = np.load(golden("nanocodec-tiny.npz"))["t3_codes"]
    path = golden("nanocodec-tiny.f32.gguf")
    with load(path) as codec:
        np.testing.assert_allclose(codec.decode(codes), TorchDecoder(path, 2).decode(codes), rtol=0, atol=5e-6)
