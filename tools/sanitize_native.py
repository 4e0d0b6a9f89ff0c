"""Runs the tests of the native library with AddressSanitizer and UndefinedBehaviorSanitizer.

Needs g++ with its sanitizers, cmake and ninja. Run from the source tree: python tools/sanitize_native.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    build = ROOT / "build" / "sanitize"
    subprocess.run(["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DPYMAGPIE_SANITIZE=address,undefined",
                    "-DCMAKE_CXX_COMPILER=g++"], check=True)
    subprocess.run(["cmake", "--build", build], check=True)
    runtimes = [subprocess.run(["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
                .stdout.strip() for name in ("libasan.so", "libubsan.so", "libstdc++.so")]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(runtimes),  # Python itself is built without them
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own objects live until the end
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYMAGPIE_NATIVE": str(build / "_native.so"),
        "PYTHONMALLOC": "malloc",
    }
    tests = [sys.executable, "-m", "pytest", "-v", "-s", "tests/native", *sys.argv[1:]]
    return subprocess.run(tests, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
