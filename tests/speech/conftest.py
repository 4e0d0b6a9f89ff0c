"""Loaded voices, shared by the tests of this folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from voices import write_assets

from pymagpie import Magpie
from pymagpie.synthetic import write_magpie, write_nanocodec
from pymagpie.text.demo_assets import write_demo_assets


@pytest.fixture(scope="session")
def golden_paths(golden: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The golden models in f32, with the demo dictionary."""
    model = golden("magpie-tiny.f32.gguf")
    order = ("english_phoneme", "text_ce_tokenizer", "spanish_phoneme")
    assets = write_assets(tmp_path_factory.mktemp("golden") / "assets", model, order)
    return {"model": model, "codec": golden("nanocodec-tiny.f32.gguf"), "assets": assets}


@pytest.fixture(scope="session")
def synthetic_paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small synthetic models that speak two frames in five tokens."""
    folder = tmp_path_factory.mktemp("synthetic")
    return {
        "model": write_magpie(folder / "magpie.gguf", frames_per_token=0.4, outtype="f32"),
        "codec": write_nanocodec(folder / "codec.gguf", base_channels=64, outtype="f32"),
        "assets": write_demo_assets(folder / "magpie.assets"),
    }


@pytest.fixture(scope="session")
def tts(golden_paths: dict[str, Path]) -> Iterator[Magpie]:
    with Magpie.load(**golden_paths, device="cpu", threads=2) as voice:
        yield voice


@pytest.fixture(scope="session")
def synthetic(synthetic_paths: dict[str, Path]) -> Iterator[Magpie]:
    with Magpie.load(**synthetic_paths, device="cpu", threads=2) as voice:
        yield voice


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Every test here must end with no codec thread alive."""
    yield
    deadline = time.monotonic() + 10
    while any(thread.name == "pymagpie-codec" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "a codec thread is still alive"
        time.sleep(0.01)
