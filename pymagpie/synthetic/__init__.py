"""Seeded random models with the true topology, tiny or full size: for tests, benchmarks and the demo.

They need no torch and no download. A random codec sounds like noise, and a random acoustic model says nothing, but both
cost what the real ones cost and go through every part of the program.
"""

from __future__ import annotations

from pymagpie.synthetic.acoustic import write_magpie
from pymagpie.synthetic.codec import write_nanocodec

__all__ = ["write_magpie", "write_nanocodec"]
