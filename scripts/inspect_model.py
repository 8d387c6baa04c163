"""Prints where a denoiser can be cached: `python scripts/inspect_model.py --model flux` is `diffcache inspect`."""

import sys

from diffcache.command.main import main

if __name__ == "__main__":
    sys.exit(main(["inspect", *sys.argv[1:]]))
