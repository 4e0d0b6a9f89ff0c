"""Shared fixtures: where the golden files are, and the devices that a backend test runs on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

# An abort inside ggml would start a debugger; a test that provokes one should just end.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
# TF32 products are good for 40 dB of an f32 model; parity is tested without them.
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")

ROOT = Path(__file__).resolve().parent.parent
GOLDEN_FOLDERS = [Path(os.environ["PYMAGPIE_GOLDEN"])] if os.environ.get("PYMAGPIE_GOLDEN") else []
GOLDEN_FOLDERS += [ROOT / "tests" / "golden", ROOT.parent / "shared" / "golden"]

BACKENDS = ("cpu", "cuda", "vulkan", "metal")


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Path]:
    """``golden(name)`` is the path of a golden file or folder; the test is skipped where there is none."""
    def find(name: str) -> Path:
        for folder in GOLDEN_FOLDERS:
            if (folder / name).exists():
                return folder / name
        pytest.skip(f"golden file {name} is not in {' or '.join(map(str, GOLDEN_FOLDERS))}")
    return find


@pytest.fixture(scope="session", params=BACKENDS)
def device(request: pytest.FixtureRequest) -> str:
    """Each kind of backend that this machine has; ``PYMAGPIE_TEST_DEVICES=cpu,cuda`` limits them."""
    from pymagpie.errors import DeviceError
    from pymagpie.ggml import find_device

    allowed = os.environ.get("PYMAGPIE_TEST_DEVICES", ",".join(BACKENDS)).split(",")
    if request.param not in allowed:
        pytest.skip(f"{request.param} is not in PYMAGPIE_TEST_DEVICES")
    try:
        find_device(request.param)
    except DeviceError as error:
        pytest.skip(str(error))
    return request.param


@pytest.fixture(scope="session")
def software(device: str) -> bool:
    """Whether *device* is a GPU that is computed on the CPU (Mesa's llvmpipe): right but slow, so it gets less work."""
    from pymagpie.ggml import find_device

    return find_device(device).in_software


@pytest.fixture
def host_copies(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts, from now on, the copies to (``set``) and from (``get``) a device, where they are made."""
    from pymagpie.ggml.bindings import ggml

    counts = {"set": 0, "get": 0}

    def count(name: str, kind: str) -> None:
        original = getattr(ggml, name)

        def counted(*arguments: object) -> object:
            counts[kind] += 1
            return original(*arguments)

        monkeypatch.setattr(ggml, name, counted)

    for name in ("tensor_set", "tensor_set_async", "tensor_memset", "tensor_copy", "buffer_clear"):
        count(f"ggml_backend_{name}", "set")
    for name in ("tensor_get", "tensor_get_async"):
        count(f"ggml_backend_{name}", "get")
    return counts
