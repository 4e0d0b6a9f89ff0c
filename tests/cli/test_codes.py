"""Codes files: what is accepted, and the line that a fault names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pymagpie.cli.codes import parse_frames, read_codes

BOOKS, SIZE = 3, 2016


def read(path: Path) -> np.ndarray:
    codes = read_codes(str(path), BOOKS, SIZE)
    assert isinstance(codes, np.ndarray) and codes.dtype == np.int32
    return codes


def test_text_in_every_allowed_dress(tmp_path: Path) -> None:
    path = tmp_path / "c.txt"
    path.write_text("\ufeff# codes\n1 2 3\n\n[4, 5, 6],  # a frame\n7;8;9\r\n(+10\t11  2015)\n", encoding="utf-8")
    assert read(path).tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 2015]]


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "uint16"])
def test_numpy_array(tmp_path: Path, dtype: str) -> None:
    codes = np.arange(12).reshape(4, 3)
    np.save(tmp_path / "c.npy", codes.astype(dtype))
    assert read(tmp_path / "c.npy").tolist() == codes.tolist()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("1 2 3\n4 5\n", r"c\.txt:2: 2 codes, but the model has 3 codebooks"),
        ("1 2 3 4\n", r"c\.txt:1: 4 codes"),
        ("1 2 3\n\n1 x 3\n", r"c\.txt:3: 'x' is not an integer"),
        ("1 2 1.5", r"c\.txt:1: '1\.5' is not an integer"),
        ("1 2 1_0", r"'1_0' is not an integer"),
        ("1 2 ٣", r"is not an integer"),
        ("1 2 +", r"'\+' is not an integer"),
        ("1 2016 3", r"c\.txt:1: code 2016 in column 2 is outside 0\.\.2015"),
        ("1 2 -1", r"code -1 in column 3"),
        ("1 2 " + "9" * 5000, r"code 9{20} in column 3"),
        ("", r"c\.txt: contains no codes"),
        ("# nothing\n\n", r"contains no codes"),
    ],
)
def test_faults_name_the_line(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "c.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=fault):
        read(path)


def test_binary_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "c.txt"
    path.write_bytes(b"1 2 3\n\xff\xfe\x00")
    with pytest.raises(ValueError, match="not text"):
        read(path)
    with pytest.raises(ValueError, match="no such file"):
        read(tmp_path / "none.txt")
    with pytest.raises(ValueError, match="is a directory"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("array", "fault"),
    [
        (np.zeros((4, 3), np.float32), "holds float32, not integers"),
        (np.zeros((3, 4), np.int32), r"shape \(3, 4\), but codes are \(frames, 3\)"),
        (np.zeros(3, np.int32), r"shape \(3,\)"),
        (np.zeros((0, 3), np.int32), "contains no codes"),
        (np.array([[0, 0, 0], [0, 2016, 0]]), r"frame 1: code 2016 in column 2 is outside 0\.\.2015"),
        (np.array([[0, 2**40, 0]]), "is outside"),
        (np.array([[0, None, 0]], dtype=object), "not a .npy array"),
    ],
)
def test_unusable_arrays(tmp_path: Path, array: np.ndarray, fault: str) -> None:
    np.save(tmp_path / "c.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match=fault):
        read(tmp_path / "c.npy")


def test_damaged_arrays(tmp_path: Path) -> None:
    path = tmp_path / "c.npy"
    np.save(path, np.zeros((400, 3), np.int32))
    data = path.read_bytes()
    huge = data.replace(b"(400, 3)", b"(9999999999, 3)", 1)
    for damaged in (b"", data[:5], data[:100], data[:-1], b"text", huge):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"c\.npy"):
            read(path)


def test_frames_come_as_their_lines_do() -> None:
    seen = []

    def lines():  # type: ignore[no-untyped-def]
        for line in ("1 2 3\n", "4 5 6\n"):
            seen.append(line)
            yield line

    frames = parse_frames(lines(), "pipe", BOOKS, SIZE)
    assert next(frames).tolist() == [1, 2, 3] and len(seen) == 1
    assert next(frames).tolist() == [4, 5, 6] and next(frames, None) is None
