"""Playing audio as it is made: through the package sounddevice, or piped to a player of the system.

sounddevice (``pip install 'pymagpie[play]'``) is used where it and its PortAudio load; otherwise the first of the
players below that is installed.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import numpy as np

from pymagpie.audio import StreamWriter, Writer
from pymagpie.errors import CapabilityError, MagpieError

#: Programs that play a WAV from their standard input.
PLAYERS = (
    ("ffplay", "-loglevel", "error", "-nodisp", "-autoexit", "-i", "pipe:0"),
    ("pw-play", "-"),
    ("aplay", "-q"),
    ("play", "-q", "-t", "wav", "-"),
)


def check_player() -> None:
    """Raise ``CapabilityError`` when there is nothing to play with."""
    if _sounddevice() is None and _player() is None:
        names = ", ".join(player[0] for player in PLAYERS)
        raise CapabilityError(f"nothing to play audio with: pip install 'pymagpie[play]', or install one of {names}")


def open_player(sample_rate: int) -> Writer:
    """A writer that plays what it is given; ``finish`` waits until all has been heard."""
    check_player()
    device, player = _sounddevice(), _player()
    if device is not None:
        return _DevicePlayer(device, sample_rate)
    assert player is not None
    return _ProgramPlayer(player, sample_rate)


class _DevicePlayer(Writer):
    def __init__(self, sounddevice: Any, sample_rate: int) -> None:
        try:
            self._stream = sounddevice.OutputStream(samplerate=sample_rate, channels=1, dtype="float32")
            self._stream.start()
        except sounddevice.PortAudioError as error:
            raise CapabilityError(f"no audio output: {error}") from None

    def write(self, samples: np.ndarray) -> None:
        self._stream.write(np.ascontiguousarray(samples, np.float32)[:, None])
        self.samples += len(samples)

    def finish(self) -> None:
        self._stream.stop()
        self._stream.close()

    def discard(self) -> None:
        self._stream.abort()
        self._stream.close()


class _ProgramPlayer(Writer):
    def __init__(self, command: tuple[str, ...], sample_rate: int) -> None:
        self._name = command[0]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert self._process.stdin is not None
        self._pipe = self._process.stdin
        self._stream = StreamWriter(self._pipe, sample_rate)

    def write(self, samples: np.ndarray) -> None:
        self._stream.write(samples)
        self.samples += len(samples)

    def finish(self) -> None:
        try:
            self._pipe.close()
        finally:
            code = self._process.wait()
        if code:
            raise MagpieError(f"{self._name} could not play the audio (exit code {code})")

    def discard(self) -> None:
        self._process.terminate()
        self._process.wait()
        try:
            self._pipe.close()
        except BrokenPipeError:
            pass


def _sounddevice() -> Any:
    try:
        import sounddevice

        return sounddevice
    except (ImportError, OSError):  # OSError: the package is there and PortAudio is not
        return None


def _player() -> tuple[str, ...] | None:
    return next((player for player in PLAYERS if shutil.which(player[0])), None)
