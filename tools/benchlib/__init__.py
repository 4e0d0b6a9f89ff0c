"""The parts of ``tools/bench_magpietts.py``."""
