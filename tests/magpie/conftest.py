"""Golden acoustic models, loaded once for all tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pymagpie.magpie import AcousticModel

MODELS = ("magpie-tiny", "magpie-tiny-fs2")


@pytest.fixture(scope="session", params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    """Each golden model: one frame a step, and two."""
    return request.param


@pytest.fixture(scope="session")
def path(golden: Callable[[str], Path], name: str) -> Path:
    return golden(f"{name}.f32.gguf")


@pytest.fixture(scope="session")
def arrays(golden: Callable[[str], Path], name: str) -> dict[str, np.ndarray]:
    return dict(np.load(golden(f"{name}.npz")))


@pytest.fixture(scope="session")
def cases(golden: Callable[[str], Path], name: str) -> dict[str, Any]:
    return json.loads(golden(f"{name}.cases.json").read_text())


@pytest.fixture(scope="session")
def model(path: Path) -> Iterator[AcousticModel]:
    """The model on one CPU thread, shared: every test must leave it usable."""
    with AcousticModel.load(path, device="cpu", threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def device_model(path: Path, device: str) -> Iterator[AcousticModel]:
    """The model on each device that there is, shared."""
    with AcousticModel.load(path, device=device, threads=1) as loaded:
        yield loaded
