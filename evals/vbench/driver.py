"""Measures one dimension of a folder of videos. It runs in VBench's environment, so it imports nothing of diffcache."""

import argparse
from pathlib import Path

import torch
import vbench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("videos", "output", "name", "dimension", "mode"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    info = Path(vbench.__file__).parent / "VBench_full_info.json"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    vbench.VBench(device, str(info), args.output).evaluate(
        videos_path=args.videos, name=args.name, dimension_list=[args.dimension], mode=args.mode
    )


if __name__ == "__main__":
    main()
