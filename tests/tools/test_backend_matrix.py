"""tools/backend_matrix.py on this machine's CPU, with small models."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import backend_matrix
import pytest


@pytest.fixture(scope="module")
def report(golden: Callable[[str], Path]) -> dict[str, Any]:
    out = io.StringIO()
    arguments = ["--devices", "cpu", "--small", "--seconds", "0.05", "--json"]
    with contextlib.redirect_stdout(out):
        assert backend_matrix.main([*arguments, "--golden", str(golden("nanocodec-tiny.npz").parent)]) == 0
    return json.loads(out.getvalue())


def test_the_cpu_equals_the_golden_fixtures(report: dict[str, Any]) -> None:
    row, = report["devices"]
    assert row["device"] == "CPU"
    assert row["golden_snr_db"]["f32"] >= 100 and 50 <= row["golden_snr_db"]["f16"] < 100
    assert row["streamed_equals_offline"] and row["golden_codes_equal"] and row["runs_identical"]
    assert {name: len(value) for name, value in row["hashes"].items()} == {"codec": 64, "greedy": 64, "top-k": 64}
    assert row["host_copies"] == {"chunk": 2, "step": 3}


def test_what_is_timed(report: dict[str, Any]) -> None:
    row, = report["devices"]
    assert list(row["codec_rtfx"]) == ["1", "4", "16", "64"] and list(row["acoustic_step_ms"]) == ["greedy", "top-k"]
    assert all(value > 0 for value in (*row["codec_rtfx"].values(), *row["acoustic_step_ms"].values()))


def test_the_table(report: dict[str, Any]) -> None:
    row = report["devices"][0]
    broken = {"device": "CUDA7", "error": "parity ended with exit code -6: out of luck"}
    head, first, second = backend_matrix.format_table({"devices": [row, broken]}).splitlines()
    assert head.split() == ("device kernels SNR f32 SNR f16 stream codes runs codec/greedy/top-k sha256 "
                            "RTFx at 1/4/16/64 step ms copies").split()
    assert first.startswith("CPU ") and first.endswith(" 2/3") and first.split().count("equal") == 3
    assert row["hashes"]["codec"][:8] in first
    assert second.split(maxsplit=1) == ["CUDA7", broken["error"]]


def test_a_worker_that_fails_is_a_row_and_not_the_end(golden: Callable[[str], Path], tmp_path: Path,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    """The fixtures are there, but the acoustic model's are not."""
    for name in ("nanocodec-tiny.npz", "nanocodec-tiny.f32.gguf", "nanocodec-tiny.f16.gguf"):
        (tmp_path / name).symlink_to(golden(name).resolve())
    assert backend_matrix.main(["--devices", "cpu", "--small", "--golden", str(tmp_path), "--json"]) == 1
    row, = json.loads(capsys.readouterr().out)["devices"]
    assert row["device"] == "CPU"
    assert row["error"].startswith("parity ended with exit code 1: FileNotFoundError") and "magpie-tiny" in row["error"]


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["--devices", "cpu,potato"], 2, "unknown device 'potato'"), (["--devices", "cpu:9"], 4, "cpu:9"),
    (["--seconds", "0"], 2, "--seconds 0"), (["--golden", "/nowhere"], 2, "no golden fixtures")])
def test_wrong_arguments(arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        found = backend_matrix.main(arguments)
    except SystemExit as error:
        found = error.code
    assert found == code and message in capsys.readouterr().err
