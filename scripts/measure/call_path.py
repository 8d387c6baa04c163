"""Counts what one denoiser call walks through: our functions, our files, and how often the path changes file.

It follows the calls of the dit testbed's denoiser in a hand-written loop, and prints a row for each kind of site, for a
computed and for a reused tick: `python scripts/measure/call_path.py`.
"""

from diffcache.evals.experiments.call_path import COMPUTED, REUSED, SETTINGS, paths_of
from diffcache.evals.harness.command_line import parser


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--list", action="store_true", help="list the functions of reused ticks, too")
    args = options.parse_args()
    for name, settings in SETTINGS.items():
        paths = paths_of(settings)
        print(f"{name:24s} computed {paths[COMPUTED]}")
        print(f"{'':24s} reused   {paths[REUSED]}")
        if args.list:
            print("\n".join(f"    {file}: {function}" for file, function in paths[REUSED].entered))


if __name__ == "__main__":
    main()
