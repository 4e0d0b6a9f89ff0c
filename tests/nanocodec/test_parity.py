"""Equal to NeMo's own decoder, on the golden utterances."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from codec_models import Utterance, snr

from pymagpie import NanoCodec
from pymagpie.native import dequantize


@pytest.mark.parametrize("name", ["t37", "t3", "t1"])
def test_f32_equals_nemo(golden: Callable[[str], Path], utterances: dict[str, Utterance], device: str, kernels: str,
                         name: str) -> None:
    with NanoCodec.load(golden("nanocodec-tiny.f32.gguf"), device, threads=2, kernels=kernels) as codec:
        audio = codec.decode(utterances[name].codes)
    assert audio.dtype == np.float32 and audio.shape == utterances[name].audio.shape
    if device == "cpu":
        assert snr(utterances[name].audio, audio) >= 100
        assert np.abs(audio - utterances[name].audio).max() <= 1e-5
    else:
        assert snr(utterances[name].audio, audio) >= 70


@pytest.mark.parametrize("name", ["t37", "t3", "t1"])
def test_f16_is_close_to_nemo(golden: Callable[[str], Path], utterances: dict[str, Utterance], device: str,
                              kernels: str, name: str) -> None:
    with NanoCodec.load(golden("nanocodec-tiny.f16.gguf"), device, threads=2, kernels=kernels) as codec:
        assert snr(utterances[name].audio, codec.decode(utterances[name].codes)) >= 50


def test_the_dense_upsampler_equals_nemo_too(golden: Callable[[str], Path],
                                             whole_utterances: dict[str, Utterance]) -> None:
    with NanoCodec.load(golden("nanocodec-tiny.f32.gguf"), "cpu", threads=2, kernels="dense") as codec:
        assert snr(whole_utterances["t37"].audio, codec.decode(whole_utterances["t37"].codes)) >= 100


@pytest.mark.parametrize("name", ["t37", "t3", "t1"])
def test_latents_are_exact(whole_utterances: dict[str, Utterance], name: str) -> None:
    latents = dequantize(whole_utterances[name].codes, (8, 7, 6, 6))
    assert np.array_equal(latents.T, whole_utterances[name].latents)


def test_properties_come_from_the_metadata(golden: Callable[[str], Path]) -> None:
    with NanoCodec.load(golden("nanocodec-tiny.f32.gguf"), "cpu", threads=1) as codec:
        properties = codec.sample_rate, codec.samples_per_frame, codec.num_codebooks, codec.codebook_size
        assert properties == (22050, 1024, 8, 2016) and codec.frame_rate == 22050 / 1024
