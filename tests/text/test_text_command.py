"""``pymagpie tokenize``."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from pymagpie.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["tokenize", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYMAGPIE_ASSETS", raising=False)


def test_ids_of_each_piece_on_standard_output(capsys: pytest.CaptureFixture[str], demo_assets: Path) -> None:
    code, out, err = run(capsys, "--assets", demo_assets, "--lang", "en-US", "Hello “world” 🙂")
    assert code == 0 and out == "55 79 90 59 62 87 93 1 90 68 82 59 52 1 7 2361\n"
    assert "slightly smiling face" in err and 'həˈloʊ "ˈwɝld".' in err


def test_json(capsys: pytest.CaptureFixture[str], demo_assets: Path) -> None:
    code, out, _ = run(capsys, "--assets", demo_assets, "--lang", "en", "--json", "Hello 🙂")
    data: dict[str, Any] = json.loads(out)
    assert code == 0 and list(data) == ["lang", "ids", "pieces", "warnings"]
    ids = [55, 79, 90, 59, 62, 87, 7, 2361]
    assert data["lang"] == "en" and data["ids"] == ids
    assert data["pieces"] == [{"text": "Hello.", "phonemes": "həˈloʊ.", "ids": ids}]
    assert data["warnings"] == ["dropped what English has no token for: 🙂 (slightly smiling face)"]


def test_raw_is_layer_one_and_the_eos(capsys: pytest.CaptureFixture[str], demo_assets: Path) -> None:
    code, out, _ = run(capsys, "--assets", demo_assets, "--raw", "--json", "A 3")
    data = json.loads(out)
    assert code == 0 and data["ids"] == [90, 53, 84, 93, 12, 2361] and data["pieces"][0]["phonemes"] == "ˈeɪ 3"


def test_standard_input_and_a_language_without_files(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments in (["--lang", "fr"], ["--lang", "fr", "-"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("été".encode())))
        code, out, _ = run(capsys, *arguments)
        assert code == 0 and out.split() == [str(633 + 3 + byte) for byte in "été.".encode()] + ["634", "2361"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    assert run(capsys, "--lang", "fr")[0] == 2


def test_vocabulary_of_a_model(capsys: pytest.CaptureFixture[str], golden: Any, demo_assets: Path) -> None:
    """The tiny model has English, bytes and Spanish; its configuration is in the file."""
    model = golden("magpie-tiny.f32.gguf")
    code, out, err = run(capsys, "--assets", demo_assets, "--model", model, "Hello")
    assert (code, out) == (0, "55 79 90 59 62 87 7 584\n"), err
    assert run(capsys, "--assets", demo_assets, "--model", model, "--lang", "de", "Hallo")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--lang", "xx", "a"], 2, "no language 'xx'; it has en, es"),
        (["--lang", "nonsense!", "a"], 2, "not a language code"),
        (["..."], 2, "nothing that can be spoken"),
        (["--lang", "es", "hola"], 3, "no dictionary for 'es'"),
        (["--raw", "a\ud83d"], 2, "lone surrogate"),
    ],
)
def test_faults(
    capsys: pytest.CaptureFixture[str], demo_assets: Path, arguments: list[str], code: int, message: str
) -> None:
    found, out, err = run(capsys, "--assets", demo_assets, *arguments)
    assert found == code and out == "" and message in err and err.count("\n") == 1


def test_missing_assets_and_models(capsys: pytest.CaptureFixture[str], tmp_path: Path, demo_assets: Path) -> None:
    assert run(capsys, "--assets", tmp_path / "none", "Hello")[0] == 3
    assert run(capsys, "--assets", demo_assets, "--model", tmp_path / "none.gguf", "Hello")[0] == 3
    code, _, err = run(capsys, "--assets", tmp_path / "none", "--json", "Hello")
    assert code == 3 and json.loads(err)["error"]["exit_code"] == 3
