"""Audio as samples, as files and as byte streams.

Samples are float32, mono, in [-1, 1]. ``pcm16`` is the one conversion to 16 bit; every writer goes through it.

A file is written under a temporary name beside its target and renamed when it is finished, so that a reader sees either
the old file or a complete new one. Pipes get a WAV header whose sizes are 0xFFFFFFFF, the usual mark of a stream of
unknown length, or no header at all (``raw``).
"""

from __future__ import annotations

import os
import secrets
import stat
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from pymagpie.errors import CapabilityError, NonFiniteError

if TYPE_CHECKING:
    from pymagpie.metrics import SpeechMetrics

#: File name extension -> (container, sample format) in libsndfile's names.
FORMATS = {
    ".wav": ("WAV", "PCM_16"),
    ".flac": ("FLAC", "PCM_16"),
    ".ogg": ("OGG", "VORBIS"),
    ".mp3": ("MP3", "MPEG_LAYER_III"),
}
UNKNOWN_SIZE = 0xFFFFFFFF
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 8000, 192000
_HEADER_BYTES = 44
_SYSTEM_ERROR = 2  # libsndfile's SF_ERR_SYSTEM
_BLOCK = 1 << 16  # samples per call of an encoder; libsndfile's Vorbis encoder keeps a whole call on the stack


def pcm16(samples: np.ndarray) -> np.ndarray:
    """Convert float samples (n,) in [-1, 1] to int16 (n,) as round(x * 32767), half to even.

    Samples outside [-1, 1] are clipped. Raises ``NonFiniteError`` for NaN or infinity, which a clip would turn into
    full-scale noise.
    """
    samples = np.asarray(samples, dtype=np.float32)
    if not np.isfinite(samples).all():
        raise NonFiniteError("the audio contains NaN or infinite samples")
    return np.rint(np.clip(samples, -1.0, 1.0) * np.float32(32767)).astype(np.int16)


def pcm16_bytes(samples: np.ndarray) -> bytes:
    """``pcm16`` as little-endian bytes, whatever the machine."""
    return pcm16(samples).astype("<i2").tobytes()


@dataclass(frozen=True, eq=False)
class AudioChunk:
    """A stretch of a stream: ``samples`` float32 (n,), the text piece it speaks and where it begins (seconds)."""

    samples: np.ndarray
    sample_rate: int
    text: str = ""
    start: float = 0.0

    @property
    def duration(self) -> float:
        """Length in seconds."""
        return len(self.samples) / self.sample_rate


@dataclass(frozen=True, eq=False)
class Audio:
    """A finished utterance.

    ``samples`` float32 (n,), mono; ``truncated`` says that a step limit cut it; ``seed`` repeats it; ``metrics`` holds
    the timings of the call that made it.
    """

    samples: np.ndarray
    sample_rate: int
    truncated: bool = False
    seed: int | None = None
    metrics: SpeechMetrics | None = field(default=None, repr=False)

    @property
    def duration(self) -> float:
        """Length in seconds."""
        return len(self.samples) / self.sample_rate

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file; the extension (wav, flac, ogg, mp3) chooses the format.

        Raises ``ValueError`` for a path that cannot be used, ``CapabilityError`` for a format that this libsndfile
        lacks and ``OSError`` when writing fails, in which case no file is left.
        """
        check_output(path)
        with open_output(path, self.sample_rate) as writer:
            writer.write(self.samples)


def resample(chunks: Iterator[AudioChunk], sample_rate: int) -> Iterator[AudioChunk]:
    """Resample a stream of chunks to ``sample_rate`` Hz with soxr, statefully, so that no border is heard.

    Raises ``ValueError`` for a rate outside 8000..192000 and ``CapabilityError`` without the package soxr.
    """
    if not MIN_SAMPLE_RATE <= sample_rate <= MAX_SAMPLE_RATE:
        raise ValueError(f"sample rate {sample_rate} is outside {MIN_SAMPLE_RATE}..{MAX_SAMPLE_RATE} Hz")
    try:
        import soxr
    except ImportError:
        raise CapabilityError("another sample rate needs the package soxr: pip install 'pymagpie[resample]'") from None

    def run() -> Iterator[AudioChunk]:
        resampler, last, start = None, None, 0.0
        for chunk in chunks:
            if chunk.sample_rate == sample_rate:
                yield chunk
                continue
            if resampler is None:
                resampler = soxr.ResampleStream(chunk.sample_rate, sample_rate, 1, dtype="float32")
            samples = resampler.resample_chunk(chunk.samples)
            yield AudioChunk(samples, sample_rate, chunk.text, start)
            start, last = start + len(samples) / sample_rate, chunk
        if resampler is not None and last is not None:
            rest = resampler.resample_chunk(np.zeros(0, np.float32), last=True)
            if len(rest):
                yield AudioChunk(rest, sample_rate, last.text, start)

    return run()


def is_stream(target: str | os.PathLike[str]) -> bool:
    """Whether ``target`` is standard output (``-``), a pipe or a device: something that a rename must not replace."""
    return os.fspath(target) == "-" or (os.path.exists(target) and not os.path.isfile(target))


def check_output(target: str | os.PathLike[str], raw: bool = False) -> None:
    """Refuse a target that cannot be written, before any work is done and without touching it.

    Raises ``ValueError`` (a directory, an unknown extension, no permission, binary data to a terminal) or
    ``CapabilityError`` (a format that this libsndfile lacks).
    """
    if os.fspath(target) == "-":
        if sys.stdout.isatty():
            raise ValueError("not writing audio to a terminal: redirect or pipe the output, or name a file with -o")
        return
    path = Path(target)
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a directory")
    if not is_stream(path):
        folder = Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            raise ValueError(f"cannot write {path}: there is no directory {folder}")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(f"cannot write {path}: the directory {folder} is not writable")
        if not raw:
            _format_of(path)
    if path.exists() and not os.access(path, os.W_OK):
        raise ValueError(f"cannot write {path}: permission denied")


def open_output(target: str | os.PathLike[str], sample_rate: int, raw: bool = False) -> Writer:
    """A writer for ``target``: a file by its extension, ``-`` for standard output, or a pipe or device by its path."""
    if os.fspath(target) == "-":
        return StreamWriter(sys.stdout.buffer, sample_rate, raw)
    if is_stream(target):
        return StreamWriter(open(target, "wb"), sample_rate, raw, close=True)
    return FileWriter(target, sample_rate, raw)


class Writer:
    """Takes float32 samples until ``finish`` or ``discard``.

    As a context manager it finishes at a normal end, and at a ``KeyboardInterrupt`` once audio has been written (a
    valid, shorter result); any other exception discards.
    """

    samples = 0

    def write(self, samples: np.ndarray) -> None:
        """Append samples (n,)."""
        raise NotImplementedError

    def finish(self) -> None:
        """Complete the output."""
        raise NotImplementedError

    def discard(self) -> None:
        """Drop what was written, as far as that is possible."""
        raise NotImplementedError

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        if kind is None or (interrupted and self.samples):
            self.finish()
        else:
            self.discard()


class StreamWriter(Writer):
    """16-bit WAV (or headerless s16le) to a binary file object, flushed after each block.

    When the object turns out to be a plain file (``-o - > speech.wav``), ``finish`` puts the true sizes in the header.
    """

    def __init__(self, file: IO[bytes], sample_rate: int, raw: bool = False, close: bool = False) -> None:
        self._file, self._rate, self._raw, self._close = file, sample_rate, raw, close
        self._start = _position(file)

    def write(self, samples: np.ndarray) -> None:
        if not self.samples and not self._raw:
            self._file.write(wav_header(self._rate))
        self._file.write(pcm16_bytes(samples))
        self._file.flush()
        self.samples += len(samples)

    def finish(self) -> None:
        if self._start is not None and self.samples and not self._raw:
            self._file.seek(self._start)
            self._file.write(wav_header(self._rate, self.samples))
            self._file.seek(0, os.SEEK_END)
            self._file.flush()
        self.discard()

    def discard(self) -> None:
        if self._close:
            self._file.close()


class FileWriter(Writer):
    """A wav, flac, ogg, mp3 or headerless s16le file, written beside its target and renamed by ``finish``.

    The target keeps its permissions; a symbolic link is followed. Raises ``OSError`` when the system refuses data, also
    when an encoder fails to say so: a finished file is read back at its last sample before it takes the target's place.
    """

    def __init__(self, path: str | os.PathLike[str], sample_rate: int, raw: bool = False) -> None:
        import soundfile

        self.path = Path(os.path.realpath(path))
        options: dict[str, Any] = {"samplerate": sample_rate, "channels": 1}
        if raw:
            options.update(format="RAW", subtype="PCM_16", endian="LITTLE")
        else:
            options["format"], options["subtype"] = _format_of(Path(path))
        self._temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.part")
        self._options, self._file = options, None
        os.close(os.open(self._temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            if self.path.exists():
                os.chmod(self._temporary, stat.S_IMODE(self.path.stat().st_mode))
            self._file = soundfile.SoundFile(self._temporary, "w", **options)
        except BaseException as error:
            self.discard()
            if isinstance(error, soundfile.LibsndfileError):
                if error.code == _SYSTEM_ERROR:
                    raise self._refused(error) from None
                raise ValueError(f"{self.path.suffix[1:]} files cannot hold {sample_rate} Hz: {error}") from None
            raise

    def write(self, samples: np.ndarray) -> None:
        import soundfile

        assert self._file is not None, "write after finish"
        pcm = pcm16(samples)
        try:
            for start in range(0, len(pcm), _BLOCK):
                self._file.write(pcm[start : start + _BLOCK])
        except (soundfile.LibsndfileError, AssertionError) as error:  # soundfile asserts that all was written
            raise self._refused(error) from None
        self.samples += len(pcm)

    def finish(self) -> None:
        import soundfile

        try:
            assert self._file is not None, "finish after discard"
            try:
                self._file.close()
                if self.samples:
                    self._check_last_sample()
            except (soundfile.LibsndfileError, EOFError) as error:
                raise self._refused(error) from None
            os.replace(self._temporary, self.path)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except Exception:  # the encoder may fail to flush what nobody wants any more
            pass
        finally:
            self._temporary.unlink(missing_ok=True)

    def _check_last_sample(self) -> None:
        import soundfile

        options = self._options if self._options["format"] == "RAW" else {}
        with soundfile.SoundFile(self._temporary, **options) as file:
            file.seek(self.samples - 1)
            if len(file.read(1)) != 1:
                raise EOFError("the last samples are missing")

    def _refused(self, error: Exception) -> OSError:
        detail = str(error).rstrip(".") or "short write"
        return OSError(f"cannot write {self.path}: the system refused data, disk full or size limit ({detail})")


def wav_header(sample_rate: int, samples: int | None = None) -> bytes:
    """The 44-byte header of a mono 16-bit WAV; without ``samples`` its two sizes are 0xFFFFFFFF."""
    data = UNKNOWN_SIZE if samples is None else min(2 * samples, UNKNOWN_SIZE)
    riff = min(data + _HEADER_BYTES - 8, UNKNOWN_SIZE)
    fmt = struct.pack("<IHHIIHH", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    return struct.pack("<4sI4s4s", b"RIFF", riff, b"WAVE", b"fmt ") + fmt + struct.pack("<4sI", b"data", data)


def _format_of(path: Path) -> tuple[str, str]:
    import soundfile

    try:
        container, subtype = FORMATS[path.suffix.lower()]
    except KeyError:
        known = ", ".join(FORMATS)
        raise ValueError(f"cannot tell the audio format of {path}: the name must end in one of {known}") from None
    if not soundfile.check_format(container, subtype):
        raise CapabilityError(f"this libsndfile cannot write {container} files; use wav, or install libsndfile >= 1.1")
    return container, subtype


def _position(file: IO[bytes]) -> int | None:
    """Where a plain file stands, or None for what cannot be rewritten (a pipe, a device, a file opened to append)."""
    try:
        number = file.fileno()
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return None
        if sys.platform != "win32":
            import fcntl

            if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_APPEND:
                return None
        return file.tell()
    except (OSError, ValueError):  # io.BytesIO has no descriptor
        return None
