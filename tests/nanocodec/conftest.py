"""Fixtures of the codec's tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from codec_models import TINY

from pymagpie import NanoCodec
from pymagpie.synthetic import write_nanocodec


@dataclasses.dataclass(frozen=True)
class Utterance:
    """A golden utterance: codes (frames, 8) and audio (frames * 1024,), computed in float64."""

    codes: np.ndarray
    latents: np.ndarray
    audio: np.ndarray


@pytest.fixture(scope="session")
def utterances(golden: Callable[[str], Path]) -> dict[str, Utterance]:
    arrays = np.load(golden("nanocodec-tiny.npz"))
    return {name: Utterance(arrays[f"{name}_codes"], arrays[f"{name}_latents"], arrays[f"{name}_audio_f64"])
            for name in ("t37", "t3", "t1")}


@pytest.fixture(params=["stock", "batched", "native"])
def kernels(request: pytest.FixtureRequest, device: str) -> str:
    """Each formulation that the device has."""
    from pymagpie import native

    if request.param == "native":
        if device != "cpu":
            pytest.skip("native kernels run on the CPU only")
        if native.load() is None:
            pytest.skip(f"native library: {native.status().reason}")
    return request.param


@pytest.fixture
def codec(golden: Callable[[str], Path], device: str, kernels: str) -> Iterator[NanoCodec]:
    with NanoCodec.load(golden("nanocodec-tiny.f32.gguf"), device, threads=2, kernels=kernels) as model:
        yield model


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A codec of two small stages, quick to load."""
    return write_nanocodec(tmp_path_factory.mktemp("codec") / "tiny.gguf", **TINY)


@pytest.fixture
def tiny(tiny_path: Path) -> Iterator[NanoCodec]:
    with NanoCodec.load(tiny_path, "cpu", threads=1) as model:
        yield model
