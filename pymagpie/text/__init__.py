"""From sentences to the text ids of a MagpieTTS model, in three layers that can be called one by one.

1. ``Tokenizer.encode``: the tokeniser of one language, equal to NeMo's.
2. ``clean``: input hygiene.
3. ``pieces`` (``Tokenizer.pieces``): clean, read numbers, split into sentences, end and encode them.

Nothing here needs ggml.
"""

from .hygiene import clean
from .layout import Layout, Section
from .pieces import Piece, pieces
from .split import split_text
from .tokenizer import Tokenizer

__all__ = ["Layout", "Piece", "Section", "Tokenizer", "clean", "pieces", "split_text"]
