"""Evaluates a pipeline with and without cache on the same prompts and seeds, and writes a report: `diffcache evaluate`.

    python scripts/evaluate.py --model flux --samples 64                      # a testbed, the default method
    python scripts/evaluate.py easycache --model wan --option threshold=0.1
    accelerate launch scripts/evaluate.py --model black-forest-labs/FLUX.1-dev --prompts PartiPrompts.tsv \\
        --samples 1600 --extractor inception --reference coco/val2017 --clip ViT-L-14 --clip-weights openai
"""

import sys

from diffcache.command.main import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
