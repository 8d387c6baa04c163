"""Gathers the wheels that a bare GPU machine lacks, for `scripts/gpu_checks.sh`: diffusers, cache-dit, torchao.

`python scripts/benchmark/wheels.py` puts them into wheels/, without what depends on torch or is there anyhow; it says how much
they weigh, and stops where that is more than `--most` MiB.
"""

import subprocess
import sys
from pathlib import Path

from diffcache.evals.harness.command_line import parser

PACKAGES = ("diffusers", "cache-dit", "torchao", "importlib_metadata", "zipp")
"""And what they import that torch, transformers and pytest do not bring."""


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--folder", type=Path, default=Path("wheels"))
    options.add_argument("--most", type=float, default=60.0, help="MiB")
    options.add_argument("--python", default="3.12", help="of the machine with the GPU")
    options.add_argument("--constraints", type=Path, default=Path("constraints.txt"))
    args = options.parse_args()
    fixed = ["--only-binary=:all:", "--no-deps", "--python-version", args.python]
    command = [sys.executable, "-m", "pip", "download", "-q", *fixed, "-d", str(args.folder)]
    subprocess.run([*command, "-c", str(args.constraints), *PACKAGES], check=True)
    found = sorted(args.folder.glob("*.whl"))
    for wheel in found:
        print(f"{wheel.stat().st_size / 2**20:7.2f} MiB  {wheel.name}")
    total = sum(wheel.stat().st_size for wheel in found) / 2**20
    if total > args.most:
        sys.exit(f"{total:.1f} MiB is more than {args.most:.1f}: leave torchao out, or raise --most.")


if __name__ == "__main__":
    main()
