"""The command as a whole: verbs, versions, exit codes, one-line errors."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pymagpie.cli as cli
from pymagpie import errors

VERBS = "synthesize generate decode tokenize convert download voices devices info bench demo".split()


@pytest.fixture(autouse=True)
def library_logger() -> Iterator[None]:
    """``main`` configures the library's logger, as a command may; other tests get it back as it was."""
    logger = logging.getLogger("pymagpie")
    before = logger.handlers[:], logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate, logger.level = before


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:  # type: ignore[no-untyped-def]
    command = [sys.executable, "-m", "pymagpie", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def test_version_names_ggml_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    import pymagpie

    out = capsys.readouterr().out
    assert out.startswith(f"pymagpie {pymagpie.__version__} (ggml 0.") and "ggml-python 0.0.45" in out


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert tuple(VERBS) == cli.VERBS and all(f"\n  {verb} " in out for verb in VERBS)
    assert cli.main([]) == 2
    assert "commands:" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([verb, "--help"])
    assert end.value.code == 0 and f"usage: pymagpie {verb}" in capsys.readouterr().out


def test_only_the_wanted_verb_is_imported() -> None:
    script = (
        "import sys, pymagpie.cli as cli\n"
        "assert cli.main(['info', '/nowhere/none.gguf']) == 3\n"
        "print(sorted(m for m in sys.modules if m.startswith('pymagpie.cli.')))\n"
        "print([m for m in ('soundfile', 'torch', 'huggingface_hub', 'tqdm') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["['pymagpie.cli.common', 'pymagpie.cli.info']", "[]"], done.stderr


def test_unknown_verbs_and_options_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["speak"], ("'speak'", "synthesize, generate, decode")),
        (["info"], ("M.gguf",)),
        (["info", "a", "--frobnicate"], ("--frobnicate", "pymagpie info --help")),
        (["--frobnicate"], ("--frobnicate",)),
        (["decode", "--threads", "-1", "-o", "x.wav"], ("--threads", "'-1' is not a positive integer")),
        (["decode", "--chunk-frames", "0", "-o", "x.wav"], ("--chunk-frames", "'0' is not a positive integer")),
    ):
        assert cli.main(arguments) == 2
        err = capsys.readouterr().err
        assert err.startswith("pymagpie: error: ") and err.count("\n") == 1
        assert all(word in err for word in words), err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("a\nb"), 2),
        (errors.ModelError("m"), 2),
        (errors.ModelNotFoundError("m"), 3),
        (errors.CapabilityError("c"), 4),
        (errors.DeviceError("c"), 4),
        (errors.BackendError("b"), 1),
        (errors.NonFiniteError("n"), 1),
        (errors.StreamOwnershipError("o"), 1),
        (OSError(28, "No space left on device"), 1),
        (MemoryError(), 1),
        (KeyError("bug"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_args: object) -> int:
        raise error

    monkeypatch.setattr(cli.verb_module("devices"), "run", fail)
    assert cli.main(["devices"]) == code
    err = capsys.readouterr().err
    assert err.startswith("pymagpie: ") and err.count("\n") == 1 and "Traceback" not in err
    assert cli.main(["devices", "--json"]) == code
    report = json.loads(capsys.readouterr().err)["error"]
    assert report["exit_code"] == code and report["type"] == type(error).__name__ and report["message"]


def test_a_missing_package_is_a_missing_capability(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)  # as if it were not installed
    assert cli.main(["decode", "-o", "a.wav"]) == 4
    assert "the package soundfile is not installed" in capsys.readouterr().err


def test_error_as_json_even_for_a_usage_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and json.loads(captured.err)["error"]["exit_code"] == 2


def test_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    """`pymagpie devices | true`: the reader is gone before the first line."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "pymagpie", "devices"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["devices", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    names = [device["name"] for device in report["devices"]]
    assert "CPU" in names and report["default_device"] in names and report["default_threads"] >= 1
    assert "llamafile" in report["missing_features"] or "llamafile" in report["cpu_features"]
    assert cli.main(["devices"]) == 0
    out = capsys.readouterr().out
    assert "CPU" in out and "native kernels: " in out


def test_info(golden, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    path = golden("nanocodec-tiny.f32.gguf")
    assert cli.main(["info", str(path), "--json", "--tensors"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["file_bytes"] == path.stat().st_size and len(report["sha256"]) == 64
    assert report["tensor_count"] == len(report["tensors"]) == sum(report["tensor_types"].values())
    assert report["parameters"] == sum(t["bytes"] for t in report["tensors"]) // 4  # all float32
    assert cli.main(["info", str(path)]) == 0
    out = capsys.readouterr().out
    assert report["sha256"] in out and report["architecture"] in out


def test_info_refuses_what_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"hello")
    assert cli.main(["info", str(path)]) == 2
    assert "not a GGUF file" in capsys.readouterr().err
    assert cli.main(["info", str(tmp_path / "none")]) == 3


def test_environment_is_checked_like_options(
    golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("PYMAGPIE_THREADS", "many")
    arguments = ["decode", "--model", str(golden("nanocodec-tiny.f32.gguf")), "-o", str(tmp_path / "a.wav")]
    assert cli.main(arguments) == 2
    assert "PYMAGPIE_THREADS: 'many' is not a positive integer" in capsys.readouterr().err


def test_module_runs_as_a_program() -> None:
    done = run("--version")
    assert done.returncode == 0 and done.stdout.startswith("pymagpie ")
    assert run("info", "none.gguf").returncode == 3
