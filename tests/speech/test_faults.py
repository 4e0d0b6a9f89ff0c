"""What goes wrong reaches the caller as one exception, threads end, and files follow the rule.

Bad input creates no file; Ctrl-C after audio has begun keeps a valid, shorter one; a runtime fault removes what it
wrote; a closed pipe ends the program quietly.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
from voices import poison

from pymagpie import Magpie
from pymagpie.audio import pcm16, wav_header
from pymagpie.cli import main
from pymagpie.errors import NonFiniteError

TEXT = "Hello world, my quick yellow dog jumped."
LONG = " ".join([TEXT] * 200)
KEYS = (
    "encoder_ms decoder_ttft_ms decoder_itl_avg_ms decoder_itl_p95_ms decoder_rtfx codec_ttfa_ms codec_icl_avg_ms "
    "codec_rtfx e2e_audio_s e2e_elapsed_s e2e_rtf e2e_rtfx e2e_ttfa_ms codec_chunks host_copies_per_chunk"
).split()


@pytest.fixture
def paths(synthetic_paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The synthetic voice, also as the environment's default, so that commands need not name it."""
    for name, variable in (("model", "PYMAGPIE_MODEL"), ("codec", "PYMAGPIE_CODEC"), ("assets", "PYMAGPIE_ASSETS")):
        monkeypatch.setenv(variable, str(synthetic_paths[name]))
    monkeypatch.setenv("PYMAGPIE_DEVICE", "cpu")
    monkeypatch.setenv("PYMAGPIE_THREADS", "2")
    return synthetic_paths


@pytest.fixture
def broken_codec(paths: dict[str, Path], tmp_path: Path) -> Path:
    return poison(paths["codec"], tmp_path / "broken.gguf", "dec.post.b")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pymagpie", "synthesize", *arguments]


def finish(*arguments: str, **options) -> subprocess.CompletedProcess:  # type: ignore[no-untyped-def]
    return subprocess.run(command(*arguments), capture_output=True, timeout=120, **options)


def start(*arguments: str, **options) -> subprocess.Popen:  # type: ignore[no-untyped-def]
    # A shell may have started the tests with SIGINT ignored, which a child inherits.
    restore = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    return subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, **restore, **options)


def wait_for_audio(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while not any(p.suffix == ".part" and p.stat().st_size > 10_000 for p in folder.iterdir()):
        assert time.monotonic() < deadline, "no audio was written"
        time.sleep(0.02)


# -- the command ---------------------------------------------------------------------------------------------------


def test_command_writes_what_the_api_makes(paths: dict[str, Path], tmp_path: Path, synthetic: Magpie) -> None:
    out = tmp_path / "o.wav"
    assert main(["synthesize", TEXT, "-o", str(out), "--seed", "3", "--quiet"]) == 0
    samples = soundfile.read(out, dtype="int16")[0]
    assert np.abs(samples.astype(int) - pcm16(synthetic.synthesize(TEXT, seed=3).samples)).max() <= 1
    first = out.read_bytes()
    (tmp_path / "t.txt").write_text(TEXT, encoding="utf-8")
    assert main(["synthesize", "-i", str(tmp_path / "t.txt"), "-o", str(out), "--seed", "3", "--quiet"]) == 0
    assert out.read_bytes() == first
    assert main(["synthesize", *TEXT.split(), "-o", str(out), "--seed", "3", "--chunk-frames", "9", "--quiet"]) == 0
    assert out.read_bytes() == first


def test_reports(paths: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["synthesize", TEXT, "-o", str(tmp_path / "o.flac"), "--greedy", "--voice", "1", "--lang", "EN-us"]
    assert main([*arguments, "--json", "--verbose", "--seed", "11"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert set(KEYS) < set(report) and report["seed"] == 11 and report["truncated"] is False
    assert report["host_copies_per_chunk"] == 2
    lines = [line for line in captured.err.splitlines() if line.startswith("encoder_ms=")]
    assert len(lines) == 1 and [pair.split("=")[0] for pair in lines[0].split(" ")] == KEYS
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "seed 0" in captured.err
    assert main([*arguments, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_text_and_audio_through_pipes(paths: dict[str, Path], synthetic: Magpie) -> None:
    done = finish("-o", "-", "--greedy", "--json", input=TEXT.encode())
    assert done.returncode == 0 and json.loads(done.stderr)["codec_chunks"] > 1
    assert done.stdout[:44] == wav_header(22050)
    samples = soundfile.read(io.BytesIO(done.stdout), dtype="int16")[0]
    assert np.array_equal(samples, pcm16(synthetic.synthesize(TEXT, temperature=0).samples))
    raw = finish("-", "-o", "-", "--raw", "--greedy", "--quiet", input=TEXT.encode())
    assert raw.stdout == done.stdout[44:] and raw.stderr == b""


def test_sample_rate(paths: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("soxr", reason="soxr is not installed")
    arguments = ["synthesize", TEXT, "--greedy", "--quiet", "-o"]
    assert main([*arguments, str(tmp_path / "a.wav")]) == 0
    assert main([*arguments, str(tmp_path / "b.ogg"), "--sample-rate", "48000"]) == 0
    a, b = soundfile.info(tmp_path / "a.wav"), soundfile.info(tmp_path / "b.ogg")
    assert b.samplerate == 48000 and abs(b.frames / 48000 - a.frames / 22050) < 1e-4


def test_only_another_rate_needs_the_resampler(
    paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "soxr", None)  # as where it is not installed
    arguments = ["synthesize", TEXT, "--greedy", "--quiet", "-o", str(tmp_path / "a.wav")]
    assert main([*arguments, "--sample-rate", "48000"]) == 4
    assert "pymagpie[resample]" in capsys.readouterr().err and not (tmp_path / "a.wav").exists()
    assert main(arguments) == 0 and (tmp_path / "a.wav").exists()


def test_playing_through_a_program(
    paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synthetic: Magpie
) -> None:
    import pymagpie.playback as playback

    heard = tmp_path / "heard"
    (tmp_path / "aplay").write_text(f"#!/bin/sh\ncat > {heard}\n")
    (tmp_path / "aplay").chmod(0o755)
    monkeypatch.setattr(playback, "_sounddevice", lambda: None)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(playback, "PLAYERS", (("aplay", "-q"),))
    monkeypatch.chdir(tmp_path)
    assert main(["synthesize", TEXT, "--greedy", "--play", "--quiet"]) == 0
    expected = pcm16(synthetic.synthesize(TEXT, temperature=0).samples)
    assert np.array_equal(soundfile.read(io.BytesIO(heard.read_bytes()), dtype="int16")[0], expected)
    assert not (tmp_path / "speech.wav").exists()
    monkeypatch.setattr(playback, "PLAYERS", (("no-such-player",),))
    assert main(["synthesize", TEXT, "--play"]) == 4


# -- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "fault"),
    [
        ([""], 2, "nothing that can be spoken"),
        (["..."], 2, "nothing that can be spoken"),
        (["\U0001f642"], 2, "nothing that can be spoken"),
        (["a", "-i", "b"], 2, "not both"),
        (["-i", "/nowhere/text"], 2, "cannot read /nowhere/text"),
        (["hi", "--voice", "nobody"], 2, "unknown voice 'nobody'"),
        (["hi", "--lang", "xx"], 2, "no language 'xx'"),
        (["hi", "--greedy", "--temperature", "1"], 2, "not allowed with"),
        (["hi", "--temperature", "nan"], 2, "temperature"),
        (["hi", "--top-k", "0"], 2, "--top-k"),
        (["hi", "--seed", "-1"], 2, "--seed"),
        (["hi", "--chunk-frames", "1000"], 2, "chunk_frames"),
        (["hi", "--sample-rate", "100"], 2, "8000..192000"),
        (["hi", "--device", "vulkan:7"], 4, "vulkan:7"),
        (["hi", "--device", "potato"], 2, "potato"),
        (["hi", "--codec-device", "potato"], 2, "potato"),
        (["hi", "--model", "/nowhere/m.gguf"], 3, "/nowhere/m.gguf"),
        (["hi", "--codec", "/nowhere/c.gguf"], 3, "/nowhere/c.gguf"),
        (["hi", "--assets", "/nowhere/assets"], 3, "/nowhere/assets"),
    ],
)
def test_bad_input_is_one_line_and_touches_no_file(
    arguments: list[str],
    code: int,
    fault: str,
    paths: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "o.wav"
    out.write_bytes(b"old")
    assert main(["synthesize", *arguments, "-o", str(out)]) == code
    err = capsys.readouterr().err
    assert err.splitlines()[-1].startswith("pymagpie: error: ") and fault in err.splitlines()[-1]
    assert out.read_bytes() == b"old" and os.listdir(tmp_path) == ["o.wav"]
    assert main(["synthesize", *arguments, "-o", str(tmp_path / "new.wav")]) == code
    assert os.listdir(tmp_path) == ["o.wav"]


def test_text_that_is_not_utf8(paths: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.txt").write_bytes(b"caf\xe9")
    assert main(["synthesize", "-i", str(tmp_path / "t.txt"), "-o", str(tmp_path / "o.wav")]) == 2
    assert "not UTF-8 text (byte 3)" in capsys.readouterr().err


# -- runtime faults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 4])
def test_nan_in_the_codec_is_one_exception(paths: dict[str, Path], broken_codec: Path, depth: int) -> None:
    with Magpie.load(paths["model"], broken_codec, paths["assets"], device="cpu", threads=2) as tts:
        tts._depth = depth  # also the way of two devices, with blocks queued when the fault comes
        for _ in range(2):
            with pytest.raises(NonFiniteError, match="codec"):
                tts.synthesize(TEXT, temperature=0)


def test_nan_in_the_acoustic_model_is_one_exception(paths: dict[str, Path], tmp_path: Path) -> None:
    broken = poison(paths["model"], tmp_path / "m.gguf", "decoder.norm_out.weight")
    with Magpie.load(broken, paths["codec"], paths["assets"], device="cpu", threads=2) as tts:
        for _ in range(2):
            with pytest.raises(NonFiniteError, match="logits"):
                tts.synthesize(TEXT, temperature=0)


def test_a_fault_removes_the_file_and_spares_the_old_one(paths: dict[str, Path], broken_codec: Path) -> None:
    folder = broken_codec.parent
    (folder / "old.wav").write_bytes(b"old")
    for name in ("old.wav", "new.wav"):
        done = finish(TEXT, "--codec", str(broken_codec), "-o", str(folder / name))
        assert done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"NaN" in done.stderr
    assert sorted(os.listdir(folder)) == ["broken.gguf", "old.wav"] and (folder / "old.wav").read_bytes() == b"old"


def test_a_full_disk_removes_the_file(paths: dict[str, Path], tmp_path: Path) -> None:
    import resource

    limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))}
    done = finish(LONG, "-o", str(tmp_path / "o.wav"), **limit)
    assert done.returncode == 1 and b"cannot write" in done.stderr and os.listdir(tmp_path) == []
    done = finish(LONG, "-o", "/dev/full")
    assert done.returncode == 1 and b"No space left" in done.stderr


def test_a_closed_pipe_ends_quietly(paths: dict[str, Path]) -> None:
    process = start(LONG, "-o", "-", "--quiet", stdout=subprocess.PIPE)
    process.stdout.read(1000)
    process.stdout.close()
    assert process.wait(60) == 0 and process.stderr.read() == b""


def test_interrupt_keeps_a_valid_shorter_file(paths: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "o.wav"
    process = start(LONG, "-o", str(out))
    wait_for_audio(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130 and process.stderr.read() == b"pymagpie: interrupted\n"
    assert os.listdir(tmp_path) == ["o.wav"]
    info = soundfile.info(out)
    assert info.frames > 0 and info.frames % 1024 == 0 and out.stat().st_size == 44 + 2 * info.frames


def test_interrupt_before_audio_leaves_nothing(paths: dict[str, Path], tmp_path: Path) -> None:
    process = start("-o", str(tmp_path / "o.wav"), stdin=subprocess.PIPE)  # waits for its text
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) in (130, -signal.SIGINT) and os.listdir(tmp_path) == []
    process.stdin.close()


def test_termination_removes_the_temporary_file(paths: dict[str, Path], tmp_path: Path) -> None:
    process = start(LONG, "-o", str(tmp_path / "o.wav"))
    wait_for_audio(tmp_path)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM and os.listdir(tmp_path) == []
