"""The decoder on PyTorch, for comparison in ``pymagpie bench codec --torch`` and as an independent check in tests.

Whole utterances only: the left context is zeros. Needs torch (``pip install "pymagpie[convert]"``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CapabilityError
from ..ggml import GGUFFile
from ..native import dequantize
from .config import CodecConfig, ConvSpec
from .native_pack import LEAKY_SLOPE
from .weights import check_tensors, compact_kernel, read_f32


class TorchDecoder:
    """A NanoCodec GGUF as float32 torch tensors on the CPU."""

    def __init__(self, path: str | Path, threads: int) -> None:
        try:
            import torch
        except ImportError as error:
            raise CapabilityError('PyTorch is not installed; run: pip install "pymagpie[convert]"') from error
        torch.set_num_threads(threads)
        self._torch = torch
        with GGUFFile.open(path) as file:
            self.config = CodecConfig.from_metadata(file.metadata, str(path))
            check_tensors(self.config, file)
            self._weights = {name: self._load(file, name) for name in file.tensors if name.startswith("dec.")}
            self._groups = {stage.index: self._group(file, stage.index) for stage in self.config.stages()}

    def _load(self, file: GGUFFile, name: str) -> Any:
        tensor = self._torch.from_numpy(read_f32(file, name).copy())
        return tensor if name.endswith(".w") else tensor.reshape(1, -1, 1)

    def _group(self, file: GGUFFile, index: int) -> int:
        """Groups of a stage's upsampler; a grouped kernel is stored without its zeros, as torch wants it."""
        stage = self.config.stages()[index]
        name = f"{stage.upsampler}.w"
        if compact_kernel(read_f32(file, name).reshape(self._weights[name].shape), stage.rate) is None:
            return 1
        inputs = self._torch.arange(stage.in_channels)
        owners = inputs // (stage.in_channels // stage.out_channels)
        self._weights[name] = self._weights[name][inputs, owners][:, None].contiguous()
        return stage.out_channels

    def runner(self, codes: np.ndarray) -> Callable[[], np.ndarray]:
        """A call that decodes *codes* (frames, codebooks) and returns float32 (samples,)."""
        return lambda: self.decode(codes)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """codes: integers (frames, codebooks). Returns float32 (frames * samples_per_frame,) in [-1, 1]."""
        torch, config = self._torch, self.config
        with torch.inference_mode():
            x = torch.from_numpy(np.ascontiguousarray(dequantize(codes, config.levels).T))[None]
            x = self._conv(config.pre, x)
            for stage in config.stages():
                x = self._half_snake(stage.activation, x)
                kernel, bias = self._weights[f"{stage.upsampler}.w"], self._weights[f"{stage.upsampler}.b"]
                rows = x.shape[2] * stage.rate
                x = torch.nn.functional.conv_transpose1d(x, kernel, bias.reshape(-1), stage.rate,
                                                         groups=self._groups[stage.index])[:, :, :rows]
                total = 0
                for stack in stage.stacks:
                    y = x
                    for block in stack:
                        z = self._conv(block.input_conv, self._half_snake(block.input_activation, y))
                        y = y + self._conv(block.skip_conv, self._half_snake(block.skip_activation, z))
                    total = total + y
                x = total / len(stage.stacks)
            x = self._conv(config.post, self._half_snake("dec.post_act", x))
            return x.clamp(-1, 1).numpy().reshape(-1)

    def _conv(self, conv: ConvSpec, x: Any) -> Any:
        functional = self._torch.nn.functional
        padded = functional.pad(x, ((conv.kernel - 1) * conv.dilation, 0))
        return functional.conv1d(padded, self._weights[f"{conv.name}.w"], self._weights[f"{conv.name}.b"].reshape(-1),
                                 dilation=conv.dilation)

    def _half_snake(self, name: str, x: Any) -> Any:
        alpha, inverse = self._weights[f"{name}.alpha"], self._weights[f"{name}.alpha_inv"]
        half = alpha.shape[1]
        snake = x[:, :half] + inverse * (alpha * x[:, :half]).sin().square()
        return self._torch.cat([snake, self._torch.nn.functional.leaky_relu(x[:, half:], LEAKY_SLOPE)], dim=1)
