"""A program with the options of ``pymagpie synthesize`` that writes noise at once, to test the benchmark's own logic.

It appends its arguments to FAKE_LOG, and FAKE_MODE asks for a fault: ``perturb`` changes one sample in each run,
``fail`` exits with 1, ``silent`` writes no audio, ``mute`` prints no metrics.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import wave
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-i", "--input", required=True)
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--voice")
    parser.add_argument("--name", default="fake")
    parser.add_argument("--rtf", type=float, default=0.5)
    for option in ("--device", "--codec-device", "--threads", "--top-k", "--model", "--codec", "--assets"):
        parser.add_argument(option)
    for flag in ("--greedy", "--verbose"):
        parser.add_argument(flag, action="store_true")
    args = parser.parse_args()
    mode = os.environ.get("FAKE_MODE", "")
    with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as log:
        log.write(json.dumps({**vars(args), "argv": sys.argv[1:], "cwd": os.getcwd()}) + "\n")
    if mode == "fail":
        print("loading\nfake: error: no such voice", file=sys.stderr)
        return 1
    text = Path(args.input).read_text("utf-8")
    noise = random.Random(0 if args.greedy else args.seed)
    samples = bytearray(noise.randbytes(2 * 22050 * len(text) // 500))
    if mode == "perturb":
        samples[7] = (samples[7] + random.SystemRandom().randrange(1, 256)) % 256
    if mode != "silent":
        with wave.open(args.output, "wb") as audio:
            audio.setnchannels(1)
            audio.setsampwidth(2)
            audio.setframerate(22050)
            audio.writeframes(samples)
    if mode != "mute":
        # The first line is what a warm-up run of another program prints.
        for rtf in (9.9, args.rtf):
            print(
                f"encoder_ms=1.00 decoder_itl_avg_ms=20.00 codec_ttfa_ms=4.50 codec_rtfx=8.25 "
                f"e2e_audio_s={len(samples) / 44100:.3f} e2e_rtf={rtf:.4f} e2e_rtfx={1 / rtf:.2f}",
                file=sys.stderr,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
