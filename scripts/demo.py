"""Shows on one pipeline what a cache does and what it costs: `diffcache demo`.

python scripts/demo.py                                  # the small model that comes with the package
python scripts/demo.py --model wan                      # a testbed of the repository
python scripts/demo.py --model black-forest-labs/FLUX.1-dev --prompt "a fox in the snow" --steps 28
"""

import sys

from diffcache.command.main import main

if __name__ == "__main__":
    sys.exit(main(["demo", *sys.argv[1:]]))
