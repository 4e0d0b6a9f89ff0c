#!/usr/bin/env python3
"""Every device of this machine against the golden fixtures and against the clock.

    python tools/backend_matrix.py                    # a table
    python tools/backend_matrix.py --json --devices cpu,cuda:1
    python tools/backend_matrix.py --small            # for Mesa's llvmpipe, or a quick look

For each device: the signal-to-noise ratio of the golden codec with f32 and f16 weights, how far a stream is from the
offline decode, whether the golden greedy codes come out, the SHA-256 of repeated runs, how many times faster than real
time a full-size random codec decodes chunks of 1, 4, 16 and 64 frames, milliseconds of a full-size acoustic step, and
copies between host and device of a chunk and of a step. A device is measured in processes of its own, so one that
crashes costs its own row; parity is measured without TF32.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
GOLDEN = REPOSITORY / "tests" / "golden"
CHUNKS = (1, 4, 16, 64)
RUNS = 20
STREAM_TOLERANCE = 2e-4
TEXT = [12, 40, 7, 55, 301, 19, 88, 23, 9, 71, 33, 584]


def parity(device: str, golden: Path, small: bool) -> dict[str, Any]:
    """What a device computes: distances from the golden fixtures, hashes of repeated runs, and host copies."""
    report = codec_parity(device, golden, small)
    acoustic = acoustic_parity(device, golden, small)
    for name in ("hashes", "host_copies"):
        report[name] |= acoustic.pop(name)
    report["runs_identical"] &= acoustic.pop("runs_identical")
    return report | acoustic


def codec_parity(device: str, golden: Path, small: bool) -> dict[str, Any]:
    """The golden codec: parity, streaming, repeated runs, and copies of a chunk."""
    import numpy as np

    from pymagpie import NanoCodec
    from pymagpie.ggml import host_copies
    from pymagpie.nanocodec import StreamState, decode_stream, init_stream_graph

    arrays = np.load(golden / "nanocodec-tiny.npz")
    frames = 2 if small else 37
    codes, expected = arrays["t37_codes"][:frames], arrays["t37_audio_f64"][: frames * 1024]
    report: dict[str, Any] = {"golden_snr_db": {}}
    for outtype in ("f16", "f32"):
        with NanoCodec.load(golden / f"nanocodec-tiny.{outtype}.gguf", device) as codec:
            offline = codec.decode(codes)
            noise = float(((offline - expected) ** 2).sum())
            report["golden_snr_db"][outtype] = round(float(10 * np.log10((expected**2).sum() / noise)), 1)
            if outtype == "f16":
                continue
            streamed = np.concatenate(list(codec.stream(codes, 1 if small else 4)))
            difference = float(np.abs(streamed - offline).max())
            report |= {"stream_difference": difference, "streamed_equals_offline": difference <= STREAM_TOLERANCE}
            hashes = {sha256(codec.decode(codes)) for _ in range(2 if small else RUNS)}
            report |= {"hashes": {"codec": hashes.pop()}, "runs_identical": not hashes}
            with StreamState(codec) as state, init_stream_graph(state, 1) as graph:
                before = host_copies()
                decode_stream(state, graph, codes[:1])
                report["host_copies"] = {"chunk": host_copies() - before}
    return report


def acoustic_parity(device: str, golden: Path, small: bool) -> dict[str, Any]:
    """The golden acoustic model: greedy codes, repeated runs, and copies of a step."""
    import numpy as np

    from pymagpie.ggml import host_copies
    from pymagpie.magpie import AcousticModel

    arrays = np.load(golden / "magpie-tiny.npz")
    case = json.loads((golden / "magpie-tiny.cases.json").read_text())["cases"]["kv_cache"]
    with AcousticModel.load(golden / "magpie-tiny.f32.gguf", device) as model:
        greedy = {"temperature": 0, "rules": "nemo", "voice": case["speaker"]}
        codes = np.stack(list(model.generate(arrays[f"text/{case['text']}"], **greedy)))
        hashes: dict[str, set[str]] = {"greedy": set(), "top-k": set()}
        counts: list[int] = []
        for name, options in (("greedy", {"temperature": 0}), ("top-k", {"seed": 5})):
            for _ in range(2 if small else RUNS):
                counts.clear()
                generation = model.generate(
                    TEXT, max_steps=4 if small else 12, min_frames=100, trace=lambda *_: counts.append(host_copies()),
                    **options
                )
                hashes[name].add(sha256(np.stack(list(generation))))
        return {
            "golden_codes_equal": bool(np.array_equal(codes, arrays["kv_cache/codes"])),
            "hashes": {name: min(found) for name, found in hashes.items()},
            "runs_identical": all(len(found) == 1 for found in hashes.values()),
            "host_copies": {"step": counts[-1] - counts[-2]},
        }


def speed(device: str, golden: Path, small: bool, seconds: float) -> dict[str, Any]:
    """How fast a device is: RTFx of the codec by frames of a chunk, milliseconds of an acoustic step."""
    from pymagpie.magpie.bench import bench_acoustic
    from pymagpie.nanocodec.bench import bench_codec
    from pymagpie.synthetic import write_nanocodec

    model = golden / "magpie-tiny.f32.gguf" if small else None
    with tempfile.TemporaryDirectory() as folder:
        sizes: dict[str, Any] = {"base_channels": 8, "up_sample_rates": (2, 2)} if small else {"base_channels": 864}
        path = write_nanocodec(Path(folder) / "codec.gguf", **sizes)
        codec = bench_codec(path, device=device, chunks=CHUNKS, kernels=("auto",), seconds=seconds)
    acoustic = bench_acoustic(model, device=device, seconds=seconds, outtypes=("f16",))["models"][0]
    steps = {"greedy": acoustic["greedy"]["step_ms"], "top-k": acoustic["top_k"]["step_ms"]}
    measured = [(chunk["frames"], *chunk["kernels"].items()) for chunk in codec["chunks"]]
    return {
        "codec_kernels": measured[0][1][0],
        "codec_rtfx": {str(frames): round(result["rtfx"], 2) for frames, (_, result) in measured},
        "acoustic_step_ms": steps,
    }


def sha256(array: Any) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def measure(device: str, args: argparse.Namespace) -> dict[str, Any]:
    """The row of one device, from two worker processes; ``error`` says what stopped one."""
    row: dict[str, Any] = {}
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    for part in ("parity", "speed"):
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", part, "--devices", device]
        command += ["--golden", str(args.golden), "--seconds", str(args.seconds)] + ["--small"] * args.small
        environment = {**os.environ, "PYTHONPATH": path, "GGML_NO_BACKTRACE": "1"}
        if part == "parity":
            environment["NVIDIA_TF32_OVERRIDE"] = "0"
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            row["error"] = f"{part} ended with exit code {done.returncode}: {last}"
            break
        row |= json.loads(done.stdout)
    return row


def format_table(report: dict[str, Any]) -> str:
    """The rows for people."""
    head = ["device", "kernels", "SNR f32", "SNR f16", "stream", "codes", "runs", "codec/greedy/top-k sha256"]
    lines = [[*head, "RTFx at " + "/".join(map(str, CHUNKS)), "step ms", "copies"]]
    for row in report["devices"]:
        if "error" in row:
            lines.append([row["device"], row["error"]])
            continue
        lines.append([
            row["device"],
            row["codec_kernels"],
            *(f"{row['golden_snr_db'][outtype]:.1f} dB" for outtype in ("f32", "f16")),
            "equal" if row["streamed_equals_offline"] else f"{row['stream_difference']:.1e}",
            "equal" if row["golden_codes_equal"] else "DIFFER",
            "equal" if row["runs_identical"] else "DIFFER",
            "/".join(row["hashes"][name][:8] for name in ("codec", "greedy", "top-k")),
            "/".join(f"{value:.4g}" for value in row["codec_rtfx"].values()),
            "/".join(f"{value:.2f}" for value in row["acoustic_step_ms"].values()),
            "/".join(str(row["host_copies"][name]) for name in ("chunk", "step")),
        ])
    widths = [max(len(line[i]) for line in lines if len(line) == len(lines[0])) for i in range(len(lines[0]))]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=False)] for line in lines)
    return "\n".join("  ".join(line).rstrip() for line in padded)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--devices", metavar="LIST", help="like cpu,cuda:1,vulkan (default: all there are)")
    parser.add_argument("--small", action="store_true", help="small models and few frames")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="for each measurement (default: 3)")
    parser.add_argument("--golden", type=Path, default=GOLDEN, metavar="DIR", help="the golden fixtures")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--worker", choices=("parity", "speed"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if not 0 < args.seconds < 1e6:
        parser.error(f"--seconds {args.seconds:g} is not a positive number")
    if not (args.golden / "nanocodec-tiny.npz").is_file():
        parser.error(f"--golden {args.golden}: no golden fixtures there")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_arguments(argv)
    sys.path.insert(0, str(REPOSITORY))
    if args.worker:
        extra = (args.seconds,) if args.worker == "speed" else ()
        work = {"parity": parity, "speed": speed}[args.worker]
        print(json.dumps(work(args.devices, args.golden, args.small, *extra)))
        return 0
    from pymagpie.errors import MagpieError
    from pymagpie.ggml import find_device, ggml_version, list_devices

    try:
        names = args.devices.split(",") if args.devices else [device.name for device in list_devices()]
        devices = [find_device(name) for name in names]
    except (MagpieError, ValueError) as error:
        print(f"backend_matrix: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 4
    report: dict[str, Any] = {"ggml": ggml_version(), "small": args.small, "devices": []}
    for device in devices:
        print(f"backend_matrix: measuring {device.name} ({device.description})", file=sys.stderr)
        row = {"device": device.name, "description": device.description, **measure(device.name, args)}
        report["devices"].append(row)
    print(json.dumps(report, indent=2) if args.json else format_table(report))
    return 1 if any("error" in row for row in report["devices"]) else 0


if __name__ == "__main__":
    sys.exit(main())
