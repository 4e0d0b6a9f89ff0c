"""Optional text normalisation by nemo_text_processing, from written to spoken form.

The package builds the grammars of a language on first use, which takes about a minute; they are kept in the user's
cache directory.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

LANGUAGES = ("de", "en", "es", "fr", "hi", "it", "ja", "ko", "pt", "vi", "zh")


def normalize(text: str, lang: str, warnings: list[str]) -> str:
    """One sentence in spoken form, or as it is, with a line in *warnings*, where the package cannot help."""
    normalizer = _normalizer(lang) if lang in LANGUAGES else f"nemo_text_processing has no rules for {lang!r}"
    if isinstance(normalizer, str):
        message = f"normalisation is limited to numbers: {normalizer}"
        if message not in warnings:
            warnings.append(message)
        return text
    return str(normalizer.normalize(text, verbose=False))


@functools.cache
def _normalizer(lang: str) -> Any:
    """The normaliser of a language, or why there is none."""
    try:
        module = importlib.import_module("nemo_text_processing.text_normalization.normalize")
    except ImportError as error:
        return f"{error.name} is not installed (pip install nemo_text_processing)"
    logging.getLogger("NeMo-text-processing").setLevel(logging.WARNING)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pymagpie" / "grammars"
    if not cache.exists() or not any(cache.glob(f"{lang}_*")):
        log.warning("building the text normalisation grammars for %r, about a minute, this once", lang)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        return module.Normalizer(input_case="cased", lang=lang, cache_dir=str(cache))
    except (NotImplementedError, ValueError, ImportError, OSError) as error:
        return f"nemo_text_processing failed for {lang!r}: {error}"
