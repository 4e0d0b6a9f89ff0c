"""The programs that are timed: how they are called, what they print, what they write."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
import wave
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

METRICS = ("e2e_rtf", "decoder_itl_avg_ms", "codec_rtfx", "codec_ttfa_ms", "e2e_audio_s")

# What the benchmark itself passes to a run, and what would change what is written or printed.
OWNED = (
    "--output",
    "--input",
    "--raw",
    "--play",
    "--seed",
    "--device",
    "--codec-device",
    "--threads",
    "--top-k",
    "--greedy",
    "--model",
    "--codec",
    "--assets",
    "--verbose",
    "--quiet",
    "--json",
)
_SHORT = {"-o": "--output", "-i": "--input"}


class RunError(RuntimeError):
    """A timed program failed or did not deliver what is measured."""


@dataclass(frozen=True)
class Program:
    """A command line with its options.

    Where the command holds a placeholder like ``{input}``, placeholders are all that is filled in; otherwise the
    options of ``pymagpie synthesize`` are appended.
    """

    label: str
    words: tuple[str, ...]
    options: tuple[str, ...]
    values: Mapping[str, str]
    environment: Mapping[str, str]

    def argv(self, text: Path, output: Path) -> list[str]:
        """The command line for one run."""
        values = {**self.values, "input": str(text), "text": text.read_text("utf-8"), "output": str(output)}
        if any("{" + name + "}" in word for word in self.words for name in values):
            return [re.sub(r"\{(\w+)\}", lambda m: values.get(m[1], m[0]), word) for word in self.words]
        return [*self.words, "-i", str(text), "-o", str(output), "--verbose", *self.options]


@dataclass(frozen=True)
class Run:
    """What one run gave: `METRICS` as printed (None for a program that prints none of them), its whole time in seconds,
    start included, and the seconds and sha256 of the samples in the WAV file that it wrote."""

    metrics: dict[str, float] | None
    wall_s: float
    audio_s: float
    sha256: str

    @property
    def wall_rtf(self) -> float:
        """Whole seconds per second of audio."""
        return self.wall_s / self.audio_s


def check_extra(extra: str) -> list[str]:
    """The words of ``--extra``; ValueError where one sets what the benchmark owns, abbreviated or not."""
    words = shlex.split(extra)
    for word in words:
        name = word.split("=", 1)[0].replace("_", "-")
        if name == "--":
            raise ValueError("--extra may not hold '--': the benchmark passes the text")
        if name.startswith("--"):
            owned = next((option for option in OWNED if option.startswith(name)), None)
        else:
            owned = _SHORT.get(name[:2])
        if owned:
            raise ValueError(f"--extra may not set {owned} (by {word!r}): it belongs to the benchmark")
    return words


def split_command(command: str) -> tuple[str, ...]:
    """The words of a command line; ValueError for an empty one or an open quote.

    Words that are paths of something existing are made absolute, since programs run in another folder: in this one,
    ``python -m pymagpie`` of another installation would import the checkout that lies here.
    """
    words = shlex.split(command)
    if not words:
        raise ValueError("the command to time is empty")
    return tuple(str(Path(word).absolute()) if "/" in word and Path(word).exists() else word for word in words)


def run_once(program: Program, text: Path, output: Path, folder: Path) -> Run:
    """Run `program` in `folder` on a text file and read what it printed and wrote; RunError when it failed."""
    output.unlink(missing_ok=True)
    argv = program.argv(text, output)
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env=dict(program.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise RunError(f"cannot start {argv[0]!r}: {error.strerror or error}") from None
    wall_s = time.perf_counter() - begin
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunError(f"{program.label}: exit code {done.returncode}: {last} (command: {shlex.join(argv)})")
    audio_s, digest = read_audio(program.label, output)
    return Run(parse_metrics(done.stderr + "\n" + done.stdout), wall_s, audio_s, digest)


def parse_metrics(printed: str) -> dict[str, float] | None:
    """`METRICS` from the last line of ``key=value`` pairs that holds them all, or None."""
    for line in reversed(printed.splitlines()):
        pairs = dict(re.findall(r"(\w+)=([-+\w.]+)", line))
        try:
            return {name: float(pairs[name]) for name in METRICS}
        except (KeyError, ValueError):
            continue
    return None


def read_audio(label: str, path: Path) -> tuple[float, str]:
    """Seconds and sha256 of the samples in a WAV file; RunError when it is not one or is empty."""
    try:
        with wave.open(str(path), "rb") as audio:
            samples = audio.readframes(audio.getnframes())
            seconds = audio.getnframes() / audio.getframerate()
    except (OSError, EOFError, wave.Error) as error:
        raise RunError(f"{label}: cannot read the audio that it should have written: {error}") from None
    if not samples:
        raise RunError(f"{label}: the audio is empty")
    return seconds, sha256(samples).hexdigest()
