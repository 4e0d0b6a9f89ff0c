"""``pymagpie decode``: parity with the API, streams, faults, and what is left on the disk."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from pymagpie.audio import pcm16, wav_header
from pymagpie.cli import main

Golden = Callable[[str], Path]
KEYS = (
    "frames samples audio_s chunks codec_ttfa_ms codec_rtfx host_copies_per_chunk device threads model_digest"
).split()


@pytest.fixture
def model(golden: Golden) -> str:
    return str(golden("nanocodec-tiny.f32.gguf"))


@pytest.fixture
def reference(golden: Golden) -> dict[str, np.ndarray]:
    return dict(np.load(golden("nanocodec-tiny.npz")))


@pytest.fixture
def codes(tmp_path: Path, reference: dict[str, np.ndarray]) -> str:
    path = tmp_path / "codes.txt"
    np.savetxt(path, reference["t37_codes"], fmt="%d")
    return str(path)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pymagpie", "decode", *arguments]


@pytest.mark.parametrize("mode", [[], ["--offline"], ["--chunk-frames", "7"], ["--chunk-frames", "100"]])
def test_wav_holds_the_golden_audio(
    mode: list[str], model: str, codes: str, tmp_path: Path, reference: dict[str, np.ndarray]
) -> None:
    out = tmp_path / "o.wav"
    assert main(["decode", "--model", model, "--codes", codes, "-o", str(out), "--threads", "2", *mode]) == 0
    samples, rate = soundfile.read(out, dtype="int16")
    assert rate == 22050 and len(samples) == 37 * 1024
    assert np.abs(samples.astype(int) - pcm16(reference["t37_audio"])).max() <= 1


def test_json_report(
    model: str, codes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], reference: dict[str, np.ndarray]
) -> None:
    np.save(tmp_path / "c.npy", reference["t37_codes"])
    arguments = ["decode", "--model", model, "--codes", str(tmp_path / "c.npy"), "-o", str(tmp_path / "o.flac")]
    assert main([*arguments, "--json", "--threads", "1", "--device", "cpu"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(KEYS) <= set(report)
    assert (report["frames"], report["samples"], report["chunks"], report["threads"]) == (37, 37 * 1024, 10, 1)
    assert report["audio_s"] == pytest.approx(37 * 1024 / 22050, abs=1e-5)
    assert report["device"] == "CPU" and report["host_copies_per_chunk"] == 2
    assert report["codec_ttfa_ms"] > 0 and report["codec_rtfx"] > 0
    digest = subprocess.run(["sha256sum", model], capture_output=True, text=True).stdout.split()[0]
    assert report["model_digest"] == f"sha256:{digest}"


def test_pipe_in_and_out(model: str, codes: str, reference: dict[str, np.ndarray]) -> None:
    """``cat codes.txt | pymagpie decode -o - | ...``"""
    with open(codes, "rb") as file:
        done = subprocess.run(
            command("--model", model, "-o", "-", "--json"), stdin=file, capture_output=True, timeout=60
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout[:44] == wav_header(22050) and json.loads(done.stderr)["frames"] == 37
    samples = soundfile.read(io.BytesIO(done.stdout), dtype="int16")[0]
    assert np.abs(samples.astype(int) - pcm16(reference["t37_audio"])).max() <= 1
    raw = subprocess.run(
        command("--model", model, "--codes", codes, "-o", "-", "--raw"), capture_output=True, timeout=60
    )
    assert raw.stdout == done.stdout[44:]


def test_redirected_output_is_a_finished_file(model: str, codes: str, tmp_path: Path) -> None:
    with open(tmp_path / "o.wav", "wb") as file:
        subprocess.run(command("--model", model, "--codes", codes, "-o", "-"), stdout=file, check=True, timeout=60)
    assert (tmp_path / "o.wav").read_bytes()[:44] == wav_header(22050, 37 * 1024)


def test_closed_pipe_ends_quietly(model: str, codes: str) -> None:
    process = subprocess.Popen(
        command("--model", model, "--codes", codes, "-o", "-", "--chunk-frames", "1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1000)
    process.stdout.close()
    assert process.wait(60) == 0 and process.stderr.read() == b""


@pytest.mark.parametrize(
    ("codes_text", "extra", "fault"),
    [
        ("1 2 3\n", [], "3 codes, but the model has 8 codebooks"),
        ("0 0 0 0 0 0 0 2016\n", [], "outside 0..2015"),
        ("", [], "contains no codes"),
        ("0 0 0 0 0 0 0 0\n", ["--device", "cuda:9"], "cuda:9"),
        ("0 0 0 0 0 0 0 0\n", ["--device", "potato"], "potato"),
        ("0 0 0 0 0 0 0 0\n", ["--threads", "0"], "--threads"),
        ("0 0 0 0 0 0 0 0\n", ["--chunk-frames", "0"], "--chunk-frames"),
    ],
)
def test_bad_input_is_one_line_and_leaves_the_old_file(
    codes_text: str, extra: list[str], fault: str, model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.txt").write_text(codes_text)
    out = tmp_path / "o.wav"
    out.write_bytes(b"old")
    code = main(["decode", "--model", model, "--codes", str(tmp_path / "c.txt"), "-o", str(out), *extra])
    err = capfd.readouterr().err
    assert code == (4 if "cuda:9" in extra else 2) and err.count("\n") == 1 and fault in err
    assert out.read_bytes() == b"old" and sorted(os.listdir(tmp_path)) == ["c.txt", "o.wav"]


def test_fault_late_in_a_pipe_removes_the_file(model: str, tmp_path: Path) -> None:
    text = "0 0 0 0 0 0 0 0\n" * 20 + "0 0 0\n"
    done = subprocess.run(
        command("--model", model, "-o", str(tmp_path / "o.wav")), input=text, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "standard input:21: 3 codes" in done.stderr and os.listdir(tmp_path) == []


def test_missing_model(tmp_path: Path, codes: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["decode", "--model", str(tmp_path / "none.gguf"), "--codes", codes, "-o", str(tmp_path / "o.wav")])
    assert code == 3 and "none.gguf" in capsys.readouterr().err and not (tmp_path / "o.wav").exists()


def test_output_is_checked_before_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decode", "--model", "none.gguf", "--codes", "none", "-o", str(tmp_path)]) == 2
    assert "is a directory" in capsys.readouterr().err


def test_model_from_the_environment(
    model: str, codes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYMAGPIE_CODEC", model)
    monkeypatch.setenv("PYMAGPIE_THREADS", "1")
    monkeypatch.setenv("PYMAGPIE_DEVICE", "cpu")
    assert main(["decode", "--codes", codes, "-o", str(tmp_path / "o.wav"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["threads"] == 1
    assert main(["decode", "--codes", codes, "-o", str(tmp_path / "o.wav"), "--json", "--threads", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["threads"] == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_full_disk_is_a_runtime_fault(model: str, codes: str) -> None:
    done = subprocess.run(
        command("--model", model, "--codes", codes, "-o", "/dev/full"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "No space left" in done.stderr and done.stderr.count("\n") == 1


def test_interrupt_keeps_a_valid_shorter_file(model: str, tmp_path: Path) -> None:
    out = tmp_path / "o.wav"
    process = subprocess.Popen(
        command("--model", model, "-o", str(out), "--chunk-frames", "1"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell may have started the tests with SIGINT ignored, which a child inherits.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdin is not None and process.stderr is not None
    process.stdin.write("0 0 0 0 0 0 0 0\n" * 3000)
    process.stdin.flush()
    deadline = time.monotonic() + 60
    while not any(p.stat().st_size > 10_000 for p in tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130 and process.stderr.read() == "pymagpie: interrupted\n"
    assert os.listdir(tmp_path) == ["o.wav"]
    assert 0 < soundfile.info(out).frames < 3000 * 1024 and soundfile.info(out).frames % 1024 == 0
