"""The acoustic model, MagpieTTS: text tokens in, codec frames out."""

from .config import InferenceDefaults, MagpieConfig
from .generate import Frame, Generation, GenerationResult, PieceResult
from .model import AcousticModel
from .options import GenerationOptions
from .window import StepTrace

__all__ = ["AcousticModel", "Frame", "Generation", "GenerationOptions", "GenerationResult", "InferenceDefaults",
           "MagpieConfig", "PieceResult", "StepTrace"]
