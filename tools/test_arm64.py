"""Cross-compiles the native kernels for arm64 and runs their tests under qemu's user-mode emulation.

Needs, on Debian: apt install g++-aarch64-linux-gnu qemu-user. Run from the source tree: python tools/test_arm64.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"


def main() -> int:
    for program, package in ((COMPILER, "g++-aarch64-linux-gnu"), (EMULATOR, "qemu-user")):
        if shutil.which(program) is None:
            print(f"{program} is missing; run: apt install {package}", file=sys.stderr)
            return 4
    build = ROOT / "build" / "arm64"
    build.mkdir(parents=True, exist_ok=True)
    runner = build / "runner"
    sources = [ROOT / "tests/native/runner.cpp", *sorted(ROOT.glob("native/*.cpp"))]
    subprocess.run([COMPILER, "-std=c++17", "-O3", "-Wall", "-Wextra", "-ffp-contract=off", "-static",
                    "-I", ROOT / "native", "-o", runner, *sources], check=True)
    environment = os.environ | {"PYMAGPIE_TEST_RUNNER": f"{EMULATOR} {runner}"}
    tests = [sys.executable, "-m", "pytest", "-v", "tests/native/test_kernels.py", *sys.argv[1:]]
    return subprocess.run(tests, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
