"""``python -m pymagpie`` is the command ``pymagpie``."""

from pymagpie.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
