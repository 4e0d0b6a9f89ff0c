"""Fifty calls take no more memory than five."""

from __future__ import annotations

import os
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

# Five requests, ten times over: what a size of text or cache needs once is built by the first round.
texts = ["Hello world.", "My quick dog jumped. " * 2, "She sings, the fox jumped after the yellow dog. " * 3, "Boy!",
         "My quick dog jumped."]
with pymagpie.Magpie.load(*sys.argv[1:4], device="cpu", threads=1) as tts:
    for call in range(1, 51):
        with tts.stream(texts[call % 5], seed=call % 5) as stream:
            for count, chunk in enumerate(stream):
                if call % 5 == 1 and count == 1:
                    break  # a cancelled call now and then
        if call in (5, 50):
            print(resident())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/statm")
def test_memory_after_50_calls(synthetic_paths: dict[str, Path]) -> None:
    paths = [str(synthetic_paths[name]) for name in ("model", "codec", "assets")]
    # One arena: glibc keeps what each new thread's own arena had at most, which is its affair and not a leak of ours.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT, *paths], capture_output=True, text=True, timeout=240,
                          env=environment)
    assert done.returncode == 0, done.stderr
    after_5, after_50 = map(int, done.stdout.split())
    assert after_50 - after_5 < 5e6, f"grew by {(after_50 - after_5) / 1e6:.1f} MB"
