"""A long video on the causal testbed, with the shortest use of rollouts: `python examples/long_video.py --out video.png`."""

import argparse
from pathlib import Path

import torch

from diffcache.evals.testbeds import causal
from diffcache.evals.training.grids import save_grid


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=Path("outputs/long_video.png"))
    options.add_argument("--frames", type=int, default=61, help="of pixels; the testbed was trained on 17")
    args = options.parse_args()
    pipe = causal.load()
    prompts = {
        0: ["a large red ring moving left on a dark background"],
        30: ["a large blue ring moving left on a dark background"],
    }
    noise = torch.Generator().manual_seed(0)
    frames = pipe(
        prompts,
        num_frames=args.frames,
        policy="deep-sink",
        window=9,
        sink=4,
        generator=noise,
        **causal.call(),
    ).frames
    save_grid(frames[0, ::4], args.out, columns=16)


if __name__ == "__main__":
    main()
