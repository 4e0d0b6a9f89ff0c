"""Fifty calls take no more memory than five."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import pymagpie

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

texts = ["Hello world.", "My quick dog jumped.", "She sings, the fox jumped after the yellow dog.", "Boy!"]
with pymagpie.Magpie.load(*sys.argv[1:4], device="cpu", threads=1) as tts:
    for call in range(1, 51):
        with tts.stream(texts[call % 4] * (1 + call % 3), seed=call) as stream:
            for count, chunk in enumerate(stream):
                if call % 5 == 1 and count == 1:
                    break  # a cancelled call now and then
        if call in (5, 50):
            print(resident())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/statm")
def test_memory_after_50_calls(synthetic_paths: dict[str, Path]) -> None:
    paths = [str(synthetic_paths[name]) for name in ("model", "codec", "assets")]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *paths], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    after_5, after_50 = map(int, done.stdout.split())
    assert after_50 - after_5 < 5e6, f"grew by {(after_50 - after_5) / 1e6:.1f} MB"
