#!/usr/bin/env bash
# Everything that needs a GPU, in one command: `bash scripts/gpu_checks.sh [folder of the results]`. A step that fails does not
# stop the others; the exit status is 1 if one failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
out=${1:-evals/results}
mkdir -p "$out"
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
failed=0
step() {
    echo "== $*"
    "$@" || failed=1
}
step python -m pytest -q tests/kernels
step python -m pytest -q -m gpu tests
step python scripts/benchmark/gpu_kernels.py --json "$out/kernels/gpu.json"
step python scripts/benchmark/engine.py --device cuda --json "$out/engine/gpu.json"
step python scripts/measure/methods.py --device cuda --samples 16 --out "$out"
step python scripts/benchmark/quantization.py --device cuda --json "$out/quantization_speed/gpu.json"
step python scripts/measure/language.py speed --model llada-8b --device cuda --rules quota --batches 1 8 \
    --only dkv-decode "dkv-decode, interval 64, not ahead" fast-dllm-dual elastic-cache --json "$out/language_speed/gpu.json"
exit "$failed"
