#!/usr/bin/env bash
# What waits for a GPU, in commands of less than eight minutes each, the most valuable first:
#
#   bash scripts/gpu_checks.sh real-size [folder]      FLUX 12B: ours, Diffusers' hooks, cache-dit; eager, then compiled blocks
#   bash scripts/gpu_checks.sh tests [folder]          tests/gpu, then tests/kernels
#   bash scripts/gpu_checks.sh kernels [folder]        each kernel's device time, beside a copy of as many bytes
#   bash scripts/gpu_checks.sh models [folder]         SDXL, SD3.5, Wan 1.3B and 14B, Qwen-Image
#   bash scripts/gpu_checks.sh quantisation [folder]   int8 and float8 weights, with and without a cache
#   bash scripts/gpu_checks.sh language [folder]       language models of LLaDA-8B's shape
#   bash scripts/gpu_checks.sh offload [folder]        features and weights in host memory
#   bash scripts/gpu_checks.sh testbeds [folder]       the default and `speedup=` on the testbeds whose weights are here
#
# Each writes JSON into the folder (gpu_results by default) row by row, so that what is cut off has left something. With --dry-run
# it takes tiny models on the CPU. It needs torch, triton, transformers and pytest; other packages may lie as wheels in
# `wheels/` (python scripts/benchmark/wheels.py gathers them), and are installed into the folder's `site` at first.
set -uo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
what=${1:-}
shift || true
out=gpu_results dry=()
for argument in "$@"; do
    case $argument in
        --dry-run) dry=(--dry-run) ;;
        *) out=$argument ;;
    esac
done
mkdir -p "$out"
out="$(cd "$out" && pwd)"
python=${PYTHON:-$(command -v python3 || command -v python)}
[ -x "$root/.venv/bin/python" ] && python=${PYTHON:-$root/.venv/bin/python}
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
export PYTHONPATH="$root:$out/site${PYTHONPATH:+:$PYTHONPATH}"
if compgen -G "$root/wheels/*.whl" > /dev/null && [ ! -d "$out/site" ]; then
    "$python" -m pip install -q --no-index --no-deps --target "$out/site" "$root"/wheels/*.whl
fi
cd "$root" || exit 2
[ ${#dry[@]} -gt 0 ] && export OMP_NUM_THREADS=1
failed=0
dry() { [ ${#dry[@]} -gt 0 ]; }
step() {
    local limit=$1
    shift
    echo "== $*"
    timeout "$limit" "$python" "$@" || { echo "== failed ($?): $*"; failed=1; }
}
real() { # seconds for the rounds, then the script's arguments
    local seconds=$1
    shift
    if dry; then
        step 300 scripts/benchmark/real_size.py "$@" --out "$out" --ticks 6 --rounds 1 --dry-run
    else
        step $((seconds + 90)) scripts/benchmark/real_size.py "$@" --out "$out" --seconds "$seconds"
    fi
}
case $what in
    real-size)
        real 180 flux
        dry && real 90 flux --compiled --only "every 2nd"
        dry || real 90 flux --compiled
        ;;
    tests)
        step 280 -m pytest -q -p no:cacheprovider --junit-xml "$out/tests_gpu.xml" tests/gpu
        dry || step 180 -m pytest -q -p no:cacheprovider --junit-xml "$out/tests_kernels.xml" tests/kernels
        ;;
    kernels) step 450 scripts/benchmark/gpu_kernels.py --json "$out/kernels/gpu.json" "${dry[@]}" ;;
    models)
        real 40 sdxl --rounds 2
        dry || real 60 sd35 --rounds 1 --ticks 10
        dry || real 30 wan1.3 --rounds 1 --ticks 8 --only uniform
        dry || real 30 qwen --rounds 1 --ticks 8
        dry || real 20 wan14 --rounds 1 --ticks 8 --only uniform
        ;;
    quantisation)
        size=(--device cuda --compile --ticks 10 --rounds 1)
        dry && size=(--device cpu --heads 1 --blocks 1 --tokens 16 --ticks 4 --rounds 1 --weights plain int8)
        step 450 scripts/benchmark/quantization.py "${size[@]}" --json "$out/quantization_speed/compiled.json"
        ;;
    language)
        size=(--model llada-8b --device cuda --batches 1 8 --repeats 1)
        dry && size=(--model tiny --device cpu --batches 1 --repeats 1)
        step 450 scripts/measure/language.py speed "${size[@]}" --rules quota --json "$out/language_speed/gpu.json" \
            --only dkv-decode default fast-dllm-dual elastic-cache
        ;;
    offload)
        dry && real 200 flux --offload
        dry || real 200 flux --offload --rounds 1 --ticks 10
        ;;
    testbeds)
        export OMP_NUM_THREADS=1
        size=(--device cuda) started=()
        testbeds=(dit flux wan sd pixart sd3 sdxl fashion ddpm kontext sana ddim lumina2)
        dry && size=(--device cpu --samples 1 --steps 8) testbeds=(dit)
        for testbed in "${testbeds[@]}"; do
            [ -s "$(find "$root/evals/testbeds/$testbed" -path '*net/*.safetensors' -o -path '*transformer/*.safetensors' | head -1)" ] || continue
            for script in trajectory threshold; do
                timeout 420 "$python" scripts/measure/$script.py --testbeds $testbed --out "$out" "${size[@]}" &> "$out/${script}_$testbed.log" &
                started+=("$!")
            done
        done
        for job in "${started[@]}"; do
            wait "$job" || failed=1
        done
        grep -H Error "$out"/*.log || true
        ;;
    *)
        sed -n '2,16s/^# \{0,1\}//p' "$root/scripts/gpu_checks.sh"
        exit 2
        ;;
esac
exit "$failed"
