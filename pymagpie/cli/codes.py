"""Reading and writing codec tokens: text, one frame a line, or a ``.npy`` array (frames, codebooks).

A line holds as many integers as the model has codebooks, separated by blanks, commas or semicolons; brackets are
ignored and ``#`` begins a comment. Every fault is a ``ValueError`` that names the file and the line.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from pymagpie.audio import is_stream

_SEPARATORS = str.maketrans(",;[](){}\t", " " * 9)


def read_codes(source: str, codebooks: int, codebook_size: int) -> np.ndarray | Iterator[np.ndarray]:
    """The codes of a file as int32 (frames, codebooks), or those of standard input (``-``) frame by frame."""
    if source == "-":
        if sys.stdin.isatty():
            raise ValueError("no codes: name a file with --codes, or pipe them in")
        return parse_frames(sys.stdin, "standard input", codebooks, codebook_size)
    path = Path(source)
    if path.is_dir():
        raise ValueError(f"{path}: is a directory, not a file of codes")
    if not path.exists():
        raise ValueError(f"{path}: no such file of codes")
    if path.suffix.lower() == ".npy":
        return _read_npy(path, codebooks, codebook_size)
    with open(path, encoding="utf-8-sig") as file:
        frames = list(parse_frames(file, str(path), codebooks, codebook_size))
    return np.stack(frames)


def parse_frames(lines: Iterable[str], name: str, codebooks: int, codebook_size: int) -> Iterator[np.ndarray]:
    """The frames of text lines, each int32 (codebooks,); none at all is an error."""
    number = 0
    empty = True
    try:
        for number, line in enumerate(lines, 1):
            tokens = line.partition("#")[0].translate(_SEPARATORS).split()
            if tokens:
                empty = False
                yield _frame(tokens, f"{name}:{number}", codebooks, codebook_size)
    except UnicodeDecodeError:
        raise ValueError(f"{name}:{number + 1}: not text; binary codes belong in a .npy file") from None
    if empty:
        raise ValueError(f"{name}: contains no codes")


def _frame(tokens: list[str], where: str, codebooks: int, codebook_size: int) -> np.ndarray:
    if len(tokens) != codebooks:
        raise ValueError(f"{where}: {len(tokens)} codes, but the model has {codebooks} codebooks")
    for column, token in enumerate(tokens, 1):
        digits = token[1:] if token[0] in "+-" else token
        if not (digits.isascii() and digits.isdigit()):
            raise ValueError(f"{where}: {token[:20]!r} is not an integer")
        if len(digits) > 9 or not 0 <= int(token) < codebook_size:
            raise ValueError(f"{where}: code {token[:20]} in column {column} is outside 0..{codebook_size - 1}")
    return np.array([int(token) for token in tokens], dtype=np.int32)


def _read_npy(path: Path, codebooks: int, codebook_size: int) -> np.ndarray:
    try:
        # Mapped, so that a header that promises more than the file has fails before anything is allocated.
        codes = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path}: not a .npy array: {error}") from None
    if codes.dtype.kind not in "iu":
        raise ValueError(f"{path}: holds {codes.dtype}, not integers")
    if codes.ndim != 2 or codes.shape[1] != codebooks:
        raise ValueError(f"{path}: shape {codes.shape}, but codes are (frames, {codebooks})")
    if not len(codes):
        raise ValueError(f"{path}: contains no codes")
    wrong = np.argwhere((codes < 0) | (codes >= codebook_size))
    if len(wrong):
        frame, column = (int(i) for i in wrong[0])
        where = f"{path}: frame {frame}: code {int(codes[frame, column])} in column {column + 1}"
        raise ValueError(f"{where} is outside 0..{codebook_size - 1}")
    return np.ascontiguousarray(codes, dtype=np.int32)


class CodesWriter:
    """Frames of codes as text, one a line, to a file or to standard output (``-``).

    A file is written beside its target and renamed when complete, also after a ``KeyboardInterrupt`` once frames have
    come; any other exception drops it. A pipe gets each frame at once, so that a decoder at its other end can begin.
    """

    def __init__(self, target: str) -> None:
        self.frames = 0
        self._path: Path | None = None
        self._file: TextIO
        if target == "-":
            self._file = sys.stdout
        elif is_stream(target):
            self._file = open(target, "w", encoding="ascii")
        else:
            self._path = Path(os.path.realpath(target))
            self._temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}.part")
            self._file = open(self._temporary, "x", encoding="ascii")

    def write(self, frame: np.ndarray) -> None:
        """Append one frame, integers (codebooks,)."""
        self._file.write(" ".join(map(str, frame)) + "\n")
        self._file.flush()
        self.frames += 1

    def __enter__(self) -> CodesWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._file is not sys.stdout:
            self._file.close()
        if self._path is None:
            return
        if kind is None or (issubclass(kind, KeyboardInterrupt) and self.frames):
            os.replace(self._temporary, self._path)
        else:
            self._temporary.unlink(missing_ok=True)
