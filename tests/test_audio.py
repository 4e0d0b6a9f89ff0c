"""Samples to 16 bit, to files, to streams; and what is left behind when writing fails."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile

from pymagpie.audio import (
    Audio,
    AudioChunk,
    FileWriter,
    StreamWriter,
    check_output,
    open_output,
    pcm16,
    pcm16_bytes,
    resample,
    wav_header,
)
from pymagpie.errors import NonFiniteError

RATE = 22050


def tone(samples: int, hz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(samples) / RATE)).astype(np.float32)


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_pcm16_known_answers() -> None:
    x = np.array([0, 1, -1, 0.5, -0.5, 1 / 32767, 1.4 / 32767, 1.6 / 32767, 2.0, -7.0], np.float32)
    assert pcm16(x).tolist() == [0, 32767, -32767, 16384, -16384, 1, 1, 2, 32767, -32767]
    assert pcm16_bytes(np.array([1 / 32767, -1], np.float32)) == b"\x01\x00\x01\x80"


def test_pcm16_is_within_half_a_step_of_its_input() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, 100_000).astype(np.float32)
    assert np.abs(pcm16(x) - x.astype(np.float64) * 32767).max() <= 0.5 + 2e-3  # 2e-3: the float32 product


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_pcm16_refuses_what_is_not_finite(bad: float) -> None:
    with pytest.raises(NonFiniteError):
        pcm16(np.array([0, bad], np.float32))


def test_header_equals_the_one_of_the_standard_library() -> None:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(bytes(200))
    assert wav_header(RATE, 100) == buffer.getvalue()[:44]
    assert wav_header(RATE)[4:8] == wav_header(RATE)[40:44] == b"\xff" * 4


@pytest.mark.parametrize("extension", ["wav", "flac", "ogg", "mp3", "WAV"])
def test_file_holds_every_sample(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"a.{extension}"
    samples = tone(30_001)
    Audio(samples, RATE).save(path)
    read, rate = soundfile.read(path, dtype="int16")
    assert rate == RATE and len(read) == len(samples) and files(tmp_path) == [path.name]
    if extension in ("wav", "flac", "WAV"):
        assert np.array_equal(read, pcm16(samples))
    else:
        error = read / 32767 - samples
        assert 10 * np.log10((samples**2).mean() / (error**2).mean()) > 20  # lossy, but the same sound


def test_long_vorbis_block_is_split_for_the_encoder(tmp_path: Path) -> None:
    Audio(tone(2_000_000), RATE).save(tmp_path / "a.ogg")  # in one call libsndfile would overflow its stack
    assert soundfile.info(tmp_path / "a.ogg").frames == 2_000_000


def test_raw_file_is_bare_samples(tmp_path: Path) -> None:
    samples = tone(500)
    with open_output(tmp_path / "speech.s16", RATE, raw=True) as writer:
        writer.write(samples[:200])
        writer.write(samples[200:])
    assert (tmp_path / "speech.s16").read_bytes() == pcm16_bytes(samples)


def test_old_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with open_output(path, RATE) as writer:
        writer.write(tone(10))
        assert path.read_bytes() == b"old"
    assert soundfile.info(path).frames == 10
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and files(tmp_path) == ["a.wav"]


@pytest.mark.parametrize("fault", [RuntimeError("x"), SystemExit(143)])
def test_fault_leaves_the_old_file_and_no_other(tmp_path: Path, fault: BaseException) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"old")
    with pytest.raises(type(fault)), open_output(path, RATE) as writer:
        writer.write(tone(10))
        raise fault
    assert path.read_bytes() == b"old" and files(tmp_path) == ["a.wav"]


def test_interrupt_keeps_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with pytest.raises(KeyboardInterrupt), open_output(path, RATE) as writer:
        writer.write(tone(1000))
        raise KeyboardInterrupt
    assert np.array_equal(soundfile.read(path, dtype="int16")[0], pcm16(tone(1000)))


def test_interrupt_before_audio_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), open_output(tmp_path / "a.wav", RATE):
        raise KeyboardInterrupt
    assert files(tmp_path) == []


def test_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "a.wav"
    link.symlink_to(tmp_path / "real" / "data")
    Audio(tone(10), RATE).save(link)
    assert link.is_symlink() and soundfile.info(tmp_path / "real" / "data").frames == 10


def test_unusable_targets_are_refused_untouched(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a directory"):
        check_output(tmp_path)
    with pytest.raises(ValueError, match="no directory"):
        check_output(tmp_path / "none" / "a.wav")
    for name in ("a", "a.mp4", "a.wav.bak"):
        with pytest.raises(ValueError, match=r"\.wav, \.flac, \.ogg, \.mp3"):
            check_output(tmp_path / name)
    check_output(tmp_path / "a.anything", raw=True)
    assert files(tmp_path) == []


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="permissions do not bind the superuser")
def test_unwritable_targets_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"old")
    path.chmod(0o400)
    with pytest.raises(ValueError, match="permission denied"):
        check_output(path)
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="not writable"):
        check_output(tmp_path / "b.wav")
    tmp_path.chmod(0o700)


def test_rate_that_a_format_lacks_is_an_argument_fault(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mp3 files cannot hold 44000 Hz"):
        FileWriter(tmp_path / "a.mp3", 44000)
    assert files(tmp_path) == []


@pytest.mark.parametrize("extension", ["wav", "flac", "ogg", "mp3"])
def test_full_disk_is_one_error_and_no_file(tmp_path: Path, extension: str) -> None:
    """Every byte limit from a header to a nearly complete file, so that failures while closing are met as well."""
    resource = pytest.importorskip("resource", reason="file size limits are POSIX's")
    script = (
        "import resource, sys, numpy as np\n"
        "from pymagpie.audio import Audio\n"
        "noise = np.random.default_rng(0).uniform(-0.5, 0.5, 9000).astype(np.float32)\n"
        "path, size = sys.argv[1], int(sys.argv[2])\n"
        "for limit in (0, 50, size // 3, size - 700, size - 1):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))\n"
        "    try:\n"
        "        Audio(noise, 22050).save(path)\n"
        "    except OSError as error:\n"
        "        print(error)\n"
    )
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 9000).astype(np.float32)
    Audio(noise, RATE).save(tmp_path / f"whole.{extension}")
    size = (tmp_path / f"whole.{extension}").stat().st_size
    (tmp_path / f"whole.{extension}").unlink()
    target = tmp_path / f"a.{extension}"
    done = subprocess.run(
        [sys.executable, "-c", script, str(target), str(size)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cannot write") == 5 and files(tmp_path) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 0  # the limit was the child's alone


def test_pipe_gets_unknown_sizes_and_readers_accept_them() -> None:
    buffer = io.BytesIO()
    with StreamWriter(buffer, RATE) as writer:
        writer.write(tone(100))
        writer.write(tone(50))
    data = buffer.getvalue()
    assert data == wav_header(RATE) + pcm16_bytes(tone(100)) + pcm16_bytes(tone(50))
    assert np.array_equal(soundfile.read(io.BytesIO(data), dtype="int16")[0][:100], pcm16(tone(100)))
    with wave.open(io.BytesIO(data)) as file:
        assert file.readframes(150) == data[44:]


def test_redirected_stream_gets_true_sizes(tmp_path: Path) -> None:
    with open(tmp_path / "a", "wb") as file:
        file.write(b"before")
        with StreamWriter(file, RATE) as writer:
            writer.write(tone(100))
        file.write(b"after")
    expected = wav_header(RATE, 100) + pcm16_bytes(tone(100))
    assert (tmp_path / "a").read_bytes() == b"before" + expected + b"after"


def test_appended_stream_is_left_as_it_is(tmp_path: Path) -> None:
    with open(tmp_path / "a", "ab") as file, StreamWriter(file, RATE) as writer:
        writer.write(tone(100))
    assert (tmp_path / "a").read_bytes() == wav_header(RATE) + pcm16_bytes(tone(100))


def test_nothing_is_sent_before_the_first_audio() -> None:
    buffer = io.BytesIO()
    with pytest.raises(RuntimeError), StreamWriter(buffer, RATE):
        raise RuntimeError
    assert buffer.getvalue() == b""


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="no device files here")
def test_device_is_written_to_and_not_replaced() -> None:
    check_output("/dev/null")
    with open_output("/dev/null", RATE) as writer:
        writer.write(tone(10))
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_chunk_knows_its_duration() -> None:
    assert AudioChunk(tone(RATE // 2), RATE, "x", 1.0).duration == 0.5


@pytest.mark.parametrize("rate", [8000, 16000, 24000, 48000])
def test_resampled_stream_does_not_depend_on_its_borders(rate: int) -> None:
    pytest.importorskip("soxr", reason="soxr is not installed")
    samples = tone(20_000)

    def run(size: int) -> list[AudioChunk]:
        pieces = [AudioChunk(samples[i : i + size], RATE, "t", i / RATE) for i in range(0, len(samples), size)]
        return list(resample(iter(pieces), rate))

    chunks = run(1024)
    whole = np.concatenate([c.samples for c in chunks])
    assert abs(len(whole) - len(samples) * rate / RATE) <= 1
    assert [c.start for c in chunks] == pytest.approx(
        np.cumsum([0] + [len(c.samples) for c in chunks[:-1]]) / rate, abs=1e-9
    )
    other = np.concatenate([c.samples for c in run(777)])
    assert np.abs(whole - other).max() < 1e-6
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(len(whole)) / rate)
    middle = slice(500, -500)
    assert np.abs(whole[middle] - expected[middle]).max() < 1e-3


def test_resample_passes_the_same_rate_through_and_names_its_limits() -> None:
    pytest.importorskip("soxr", reason="soxr is not installed")
    chunk = AudioChunk(tone(100), RATE)
    assert list(resample(iter([chunk]), RATE)) == [chunk]
    with pytest.raises(ValueError, match="8000..192000"):
        resample(iter([chunk]), 1000)
