#!/usr/bin/env bash
# Everything that waits for a GPU, in one command: `bash scripts/gpu_checks.sh [folder for the JSON]`.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-evals/results}
mkdir -p "$out"
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
python -m pytest -q tests/kernels
python -m pytest -q -m gpu tests
python scripts/benchmark_kernels.py --json "$out/kernels_gpu.json"
python scripts/benchmark.py --device cuda --json "$out/engine_gpu.json"
python scripts/compare_methods.py --device cuda --samples 16 --json "$out/methods_gpu.json"
python scripts/benchmark_quantization.py --device cuda --json "$out/quantization_gpu.json"
python scripts/eval_language.py speed --model llada-8b --device cuda --rules quota --batches 1 8 \
    --only dkv-decode "dkv-decode, interval 64, not ahead" fast-dllm-dual elastic-cache --json "$out/language_gpu.json"
