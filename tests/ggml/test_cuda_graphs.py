"""CUDA graphs: captured while a graph warms up, never again, and the same bytes as without them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pymagpie.errors import DeviceError
from pymagpie.ggml import find_device

SCRIPT = Path(__file__).with_name("cuda_graph_runs.py")
ROOT = SCRIPT.parents[2]


@pytest.fixture(scope="module")
def runs(golden: Callable[[str], Path]) -> dict[str, dict[str, Any]]:
    """What :mod:`cuda_graph_runs` reports, ``with`` graphs and ``without``."""
    if "cuda" not in os.environ.get("PYMAGPIE_TEST_DEVICES", "cuda"):
        pytest.skip("cuda is not in PYMAGPIE_TEST_DEVICES")
    try:
        features = find_device("cuda").features()
    except DeviceError as error:
        pytest.skip(str(error))
    if features.get("USE_GRAPHS") != "1":
        pytest.skip("this build of ggml has no CUDA graphs")
    environment = {name: value for name, value in os.environ.items() if name != "GGML_CUDA_DISABLE_GRAPHS"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH"))))
    command = [sys.executable, str(SCRIPT), str(golden("nanocodec-tiny.f32.gguf")), str(golden("magpie-tiny.f32.gguf"))]
    reports = {}
    for name, extra in (("with", {}), ("without", {"GGML_CUDA_DISABLE_GRAPHS": "1"})):
        done = subprocess.run(command, env={**environment, **extra}, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        reports[name] = json.loads(done.stdout)
    return reports


@pytest.mark.parametrize("part", ["codec", "acoustic"])
def test_nothing_is_captured_again_after_the_warm_up(runs: dict[str, dict[str, Any]], part: str) -> None:
    captured = [line for line in runs["with"][part]["warm_up"] if "warmup complete" in line]
    assert len(captured) >= 2  # both chunk sizes; both tails of a step
    assert runs["with"][part]["steady"] == []
    assert not any("warmup complete" in line for line in runs["without"][part]["warm_up"])


@pytest.mark.parametrize("part", ["codec", "acoustic"])
def test_runs_are_byte_identical_and_equal_those_without_graphs(runs: dict[str, dict[str, Any]], part: str) -> None:
    """The codec alternates two chunk sizes 50 times in each of 20 runs."""
    assert len(runs["with"][part]["hashes"]) == 20
    assert len({*runs["with"][part]["hashes"], *runs["without"][part]["hashes"]}) == 1
