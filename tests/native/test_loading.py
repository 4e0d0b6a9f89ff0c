"""Finding, refusing and switching off the native library."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pymagpie import native

SHOW = """
from pymagpie import native
status = native.status()
print(status.library is not None, status.reason, native.instruction_sets())
"""


def show(environment_value, monkeypatch):
    monkeypatch.setenv("PYMAGPIE_NATIVE", str(environment_value))
    done = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_switched_off(monkeypatch):
    assert show(0, monkeypatch) == "False switched off by PYMAGPIE_NATIVE=0 ()\n"


def test_missing_file(monkeypatch, tmp_path):
    assert "does not exist" in show(tmp_path / "none.so", monkeypatch)


def test_not_a_library(monkeypatch, tmp_path):
    path = tmp_path / "text.so"
    path.write_text("no library")
    assert show(path, monkeypatch).startswith("False ")


def test_a_library_of_something_else(monkeypatch):
    import _ctypes  # any shared library without our symbols

    assert "pymagpie_abi_version" in show(_ctypes.__file__, monkeypatch)


@pytest.mark.skipif(native.load() is None, reason=f"native library: {native.status().reason}")
def test_plain_code_is_always_there():
    assert native.instruction_sets()[0] == "plain"
