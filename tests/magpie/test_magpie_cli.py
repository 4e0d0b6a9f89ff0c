"""The verbs generate and voices, through the command line's own entry point."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from pymagpie.cli import main
from pymagpie.magpie import AcousticModel

TOKENS = "12 40 7 55 301 584"


@pytest.fixture
def arguments(path: Path) -> list[str]:
    return ["generate", "--model", str(path), "--device", "cpu", "--threads", "1", "--max-steps", "5"]


def _codes(text: str) -> np.ndarray:
    return np.loadtxt(text.splitlines(), int, ndmin=2)


def test_codes_on_standard_output(arguments: list[str], model: AcousticModel,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--tokens", TOKENS, "--seed", "7", "--json"]) == 0
    out, err = capsys.readouterr()
    generation = model.generate([int(token) for token in TOKENS.split()], seed=7, max_steps=5)
    expected = list(generation)
    np.testing.assert_array_equal(_codes(out), expected)
    report = json.loads(err.splitlines()[-1])
    assert (report["seed"], report["frames"], report["voice"]) == (7, len(expected), model.voices[0])
    assert (report["end_reason"], report["truncated"]) == (generation.result.end_reason, generation.result.truncated)


def test_drawn_seed_is_reported_and_repeats_the_run(arguments: list[str], tmp_path: Path,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    assert main([*arguments, "--tokens", TOKENS, "-o", str(first), "--json"]) == 0
    seed = json.loads(capsys.readouterr().out)["seed"]
    assert main([*arguments, "--tokens", TOKENS, "-o", str(second), "--seed", str(seed)]) == 0
    assert str(seed) in capsys.readouterr().err
    assert first.read_text() == second.read_text()


def test_tokens_from_file_and_standard_input(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tokens.txt"
    file.write_text(TOKENS.replace(" ", "\n"))
    assert main([*arguments, "--tokens-file", str(file), "--greedy"]) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO(TOKENS))
    assert main([*arguments, "--tokens-file", "-", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == first


def test_missing_text_eos_is_a_warning(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--tokens", "1 2 3", "--seed", "1"]) == 0
    assert "not the text EOS 584" in capsys.readouterr().err
    assert main([*arguments, "--tokens", TOKENS, "--seed", "1"]) == 0
    assert "not the text EOS" not in capsys.readouterr().err


@pytest.mark.parametrize(("options", "code", "message"), [
    (["--tokens", ""], 2, "contains no tokens"), (["--tokens", "1 x"], 2, "'x' is not a token id"),
    (["--tokens", "1 9999"], 2, "9999 at index 1 is outside 0..584"), (["--tokens", "-1"], 2, "outside 0..584"),
    (["--tokens-file", "nowhere.txt"], 2, "nowhere.txt"), (["--tokens", "1", "--voice", "Bob"], 2, "Aria, Jason"),
    (["--tokens", "1", "--top-k", "0"], 2, "--top-k"), (["--tokens", "1", "--temperature", "-1"], 2, "temperature"),
    (["--tokens", "1", "--cfg-scale", "nan"], 2, "cfg_scale"), (["--tokens", "1", "--seed", "-1"], 2, "seed"),
    (["--tokens", "1", "--greedy", "--temperature", "1"], 2, "--greedy"), ([], 2, "--tokens")])
def test_wrong_argument(arguments: list[str], options: list[str], code: int, message: str,
                        capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, *options]) == code
    out, err = capsys.readouterr()
    assert message in err and len(err.splitlines()) == 1 and not out


def test_missing_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["generate", "--model", str(tmp_path / "none.gguf"), "--tokens", "1"]) == 3
    assert main(["voices", "--model", str(tmp_path / "none.gguf")]) == 3


def test_voices(path: Path, model: AcousticModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["voices", "--model", str(path)]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == list(model.voices)
    assert main(["voices", "--model", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["voices"] == list(model.voices)
