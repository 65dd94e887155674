"""`python -m tenora_engine serve ...` runs an engine; `prepare` makes a model folder, `tune` measures on a GPU."""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

_USAGE: Final = "usage: python -m tenora_engine {serve,prepare,tune} ...   (each explains itself with --help)"

# How long an OpenMP thread spins before it sleeps, in loop turns; libgomp reads it when torch is loaded. Its default
# spins for milliseconds: on a machine with other work, threads then burn each other's time slices (measured eight
# times slower). This is some tens of microseconds, longer than the gaps within a step.
_SPIN_COUNT: Final = "2000"


def main(arguments: list[str]) -> int:
    match arguments:
        case ["serve", *options]:
            return _serve(options)
        case ["prepare", *options]:
            from tenora_engine import prepare

            return prepare.main(options)
        case ["tune", *options]:
            from tenora_engine import tune

            return tune.main(options)
        case _:
            print(_USAGE, file=sys.stderr)
            return 2


def _serve(options: list[str]) -> int:
    from tenora_engine.config import parse_config

    config = parse_config(options)
    os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
    from tenora_engine.errors import StartError
    from tenora_engine.server import serve

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        serve(config)
    except StartError as error:
        print(f"cannot start: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
