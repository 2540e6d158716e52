"""``python -m hf_lwal``: the command line, as the script ``hf-lwal``."""

import sys

from .cli.main import program

if __name__ == "__main__":
    sys.exit(program())
