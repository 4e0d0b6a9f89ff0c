"""``pymagpie demo``: text to audio with nothing but the package."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

from pymagpie.cli import main


def test_demo_writes_audio_and_says_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert main(["demo", "--threads", "2", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert "random" in err and "pymagpie download" in err and "e2e_rtfx=" in out
    samples, rate = soundfile.read("demo.wav")
    assert rate == 22050 and len(samples) > 22050
    assert 0.02 < np.sqrt((samples**2).mean()) < 0.5  # neither silent nor clipped
    assert os.listdir(tmp_path) == ["demo.wav"]


def test_demo_is_seeded_and_speaks_the_given_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("a.wav", "b.wav", "c.wav")]
    for path, seed in zip(files, ("5", "5", "6"), strict=True):
        assert main(["demo", "Hello world.", "-o", str(path), "--seed", seed, "--json", "--device", "cpu"]) == 0
    a, b, c = (path.read_bytes() for path in files)
    assert a == b != c
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert reports[0]["seed"] == 5 and reports[0]["e2e_audio_s"] == soundfile.info(files[0]).duration


def test_demo_refuses_a_wrong_target_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "-o", str(tmp_path)]) == 2
    assert main(["demo", "-o", "-"]) == 2
    assert main(["demo", "?!", "-o", str(tmp_path / "a.wav")]) == 2
    assert os.listdir(tmp_path) == [] and capsys.readouterr().err.count("\n") == 3
