"""Fixtures of the codec's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from codec_models import SMALL, TINY, Utterance

from pymagpie import NanoCodec
from pymagpie.synthetic import write_nanocodec

SOFTWARE_FRAMES = {"t37": 2, "t3": 1, "t1": 1}
"""What a GPU computed on the CPU decodes of a golden utterance; the codec looks ahead of no frame."""


@pytest.fixture(scope="session")
def whole_utterances(golden: Callable[[str], Path]) -> dict[str, Utterance]:
    arrays = np.load(golden("nanocodec-tiny.npz"))
    return {name: Utterance(arrays[f"{name}_codes"], arrays[f"{name}_latents"], arrays[f"{name}_audio_f64"])
            for name in ("t37", "t3", "t1")}


@pytest.fixture(scope="session")
def utterances(whole_utterances: dict[str, Utterance], software: bool) -> dict[str, Utterance]:
    """For parity on a device: whole, or the first frames of each where the device is slow."""
    if not software:
        return whole_utterances
    return {name: Utterance(whole_utterances[name].codes[:frames], whole_utterances[name].latents[:, :frames],
                            whole_utterances[name].audio[:frames * 1024])
            for name, frames in SOFTWARE_FRAMES.items()}


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


@pytest.fixture(scope="session")
def codec_path(golden: Callable[[str], Path], software: bool,
               tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``codec_path(outtype)``, for tests of streaming: the golden codec, or one of its kind with fewer and smaller
    stages where the device is slow. Both take the golden codes."""
    def find(outtype: str) -> Path:
        if not software:
            return golden(f"nanocodec-tiny.{outtype}.gguf")
        path = tmp_path_factory.getbasetemp() / f"small-codec.{outtype}.gguf"
        return path if path.exists() else write_nanocodec(path, outtype=outtype, **SMALL)
    return find


@pytest.fixture
def codec(codec_path: Callable[[str], Path], device: str, kernels: str) -> Iterator[NanoCodec]:
    with NanoCodec.load(codec_path("f32"), device, threads=2, kernels=kernels) as model:
        yield model


@pytest.fixture(scope="session")
def codes(whole_utterances: dict[str, Utterance]) -> np.ndarray:
    """Golden codes, int (37, 8)."""
    return whole_utterances["t37"].codes


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A codec of two small stages, quick to load."""
    return write_nanocodec(tmp_path_factory.mktemp("codec") / "tiny.gguf", **TINY)


@pytest.fixture
def tiny(tiny_path: Path) -> Iterator[NanoCodec]:
    with NanoCodec.load(tiny_path, "cpu", threads=1) as model:
        yield model
