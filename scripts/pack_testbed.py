"""Packs the sd3 testbed into evals/testbeds/emoji.zip, which comes with the package: `python scripts/pack_testbed.py`."""

from diffcache.evals.harness.command_line import parser
from diffcache.evals.testbeds import shipped, zoo


def main() -> None:
    parser(__doc__).parse_args()
    shipped.pack(zoo.FOLDER / "sd3")
    print(f"{shipped.FILE}: {shipped.FILE.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
