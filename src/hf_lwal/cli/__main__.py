"""``python -m hf_lwal.cli``: the command line, as the script ``hf-lwal``; what ``accelerate launch -m`` takes."""

import sys

from .main import program

if __name__ == "__main__":
    sys.exit(program())
