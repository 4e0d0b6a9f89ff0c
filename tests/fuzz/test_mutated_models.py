"""Damaged model files end in one clear line, never in a signal, a hang, a memory hog or a half-written file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import soundfile

from pymagpie.synthetic import write_magpie, write_nanocodec

RUNNER = Path(__file__).with_name("mutate_and_run.py")
MUTATIONS = int(os.environ.get("PYMAGPIE_FUZZ", "240"))
MAX_PEAK = 1 << 30  # bytes
FRAMES = 3


def run(model: Path, folder: Path, output: str, *arguments: str) -> list[dict]:
    (folder / "scratch").mkdir()
    done = subprocess.run(
        [sys.executable, str(RUNNER), str(model), str(MUTATIONS), str(folder / "scratch"), output, "--", *arguments],
        capture_output=True, text=True, timeout=900, env={**os.environ, "GGML_NO_BACKTRACE": "1"})
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == MUTATIONS
    for result in results:
        assert result["signal"] == 0, result
        assert result["code"] in range(5), result
        assert result["peak"] < MAX_PEAK, result
        if result["code"] == 0:
            assert result["left"] == [output], result
        else:
            assert result["left"] == [], result
            assert len(result["stderr"]) == 1, result
    assert results[0]["code"] == 0  # the undamaged file works
    assert sum(result["code"] != 0 for result in results) > MUTATIONS // 4  # and the damage is real
    return results


def test_mutated_codecs(tmp_path: Path) -> None:
    model = write_nanocodec(tmp_path / "model.gguf", base_channels=8, up_sample_rates=(2, 2),
                            resblock_kernel_sizes=(3,), resblock_dilation_sizes=(1,), num_codebooks=2,
                            num_levels=(4, 3), outtype="f32")
    codes = tmp_path / "codes.txt"
    codes.write_text("0 1\n2 3\n4 5\n")
    results = run(model, tmp_path, "out.wav", "decode", "--model", "{model}", "--codes", str(codes), "-o", "{output}",
                  "--device", "cpu", "--threads", "1")
    for result in results:
        if result["code"] == 0:
            samples, rate = soundfile.read(tmp_path / f"{result['index']}.wav", dtype="float32")
            assert len(samples) == FRAMES * 4 and np.isfinite(samples).all() and rate > 0, result


def test_mutated_acoustic_models(tmp_path: Path) -> None:
    model = write_magpie(tmp_path / "model.gguf", size="tiny", outtype="f32")
    results = run(model, tmp_path, "codes.txt", "generate", "--model", "{model}", "--tokens", "5 6 7 2361",
                  "--seed", "1", "--max-steps", "4", "-o", "{output}", "--device", "cpu", "--threads", "1")
    for result in results:
        if result["code"] == 0:
            rows = [line.split() for line in (tmp_path / f"{result['index']}.txt").read_text().splitlines()]
            assert rows and len({len(row) for row in rows}) == 1, result
