"""The decoder in numpy float64, straight from the formulas: what the graphs are compared with."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pymagpie.ggml import GGUFFile
from pymagpie.native import dequantize_numpy


def decode(path: Path, codes: np.ndarray) -> np.ndarray:
    """codes (frames, codebooks) to audio (samples,), offline."""
    with GGUFFile.open(path) as file:
        meta = file.metadata
        tensors = {name: file.read(name).astype(np.float64) for name in file.tensors}

    def conv(name: str, x: np.ndarray, dilation: int = 1) -> np.ndarray:
        kernel = tensors[f"{name}.w"]  # (out, in, taps)
        taps = kernel.shape[2]
        padded = np.pad(x, ((0, 0), ((taps - 1) * dilation, 0)))
        y = sum(kernel[:, :, k] @ padded[:, k * dilation:k * dilation + x.shape[1]] for k in range(taps))
        return y + tensors[f"{name}.b"].reshape(-1, 1)

    def half_snake(name: str, x: np.ndarray) -> np.ndarray:
        half = len(x) // 2
        alpha, inverse = (tensors[f"{name}.{part}"].reshape(-1, 1) for part in ("alpha", "alpha_inv"))
        lower, upper = x[:half], x[half:]
        return np.concatenate([lower + inverse * np.sin(alpha * lower)**2, np.where(upper > 0, upper, 0.01 * upper)])

    def upsample(name: str, x: np.ndarray, rate: int) -> np.ndarray:
        kernel = tensors[f"{name}.w"]  # (in, out, taps)
        y = np.zeros((kernel.shape[1], (x.shape[1] - 1) * rate + kernel.shape[2]))
        for frame in range(x.shape[1]):
            y[:, frame * rate:frame * rate + kernel.shape[2]] += np.einsum("i,iok->ok", x[:, frame], kernel)
        return y[:, :x.shape[1] * rate] + tensors[f"{name}.b"].reshape(-1, 1)

    kernels = meta["nano_codec.decoder.resblock_kernel_sizes"]
    dilations = meta["nano_codec.decoder.resblock_dilation_sizes"]
    x = dequantize_numpy(codes, meta["nano_codec.quantizer.num_levels_per_group"]).T.astype(np.float64)
    x = conv("dec.pre", x)
    for i, rate in enumerate(meta["nano_codec.decoder.up_sample_rates"]):
        x = upsample(f"dec.up.{i}", half_snake(f"dec.act.{i}", x), rate)
        total = np.zeros_like(x)
        for j in range(len(kernels)):
            y = x
            for m, dilation in enumerate(dilations):
                name = f"dec.res.{i}.{j}.{m}"
                z = conv(f"{name}.ic", half_snake(f"{name}.ia", y), dilation)
                y = y + conv(f"{name}.sc", half_snake(f"{name}.sa", z))
            total += y
        x = total / len(kernels)
    audio = conv("dec.post", half_snake("dec.post_act", x)).reshape(-1)
    return np.tanh(audio) if meta["nano_codec.decoder.output_activation"] == "tanh" else np.clip(audio, -1, 1)
