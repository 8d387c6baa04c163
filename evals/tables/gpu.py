"""The tables of docs/measured/gpu.md: denoisers and a language model at their real sizes, quantised weights, and kernels."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from diffcache.evals.harness.markdown import markdown_table, named_once
from diffcache.evals.harness.results import Result, stored
from diffcache.evals.language.run_names import RunName
from diffcache.evals.speed.real_variants import base_of

SPEED_HEAD = (
    "variant", "computed", "loop, s", "speed-up", "without any cost", "reused tick, ms", "first loop, s", "memory, GiB",
    "reads of the device",
)  # fmt: skip
KERNEL_HEAD = (
    "sizes of", "op", "TB/s", "share of a copy's", "over eager", "over compiled", "on the host, µs", "target",
)  # fmt: skip
WEIGHTS_HEAD = ("blocks", "weights", "GiB", "a step, ms", "with a cache, ms", "faster")
LANGUAGE_HEAD = ("batch", "cache", "written in", "tokens per second", "faster")


def gpu_tables() -> dict[str, str]:
    """By name: one for each denoiser that was measured, and one of all kernels."""
    speeds = {f"real_size_{name}": _speed_table(result) for name, result in stored("real_size").items()}
    return {
        **speeds,
        "gpu_weights": _weights_table(stored("quantization_speed")),
        "gpu_language": _language_table(
            [result for name, result in stored("language_speed").items() if name.startswith("gpu")]
        ),
        "gpu_kernels": _kernels_table(stored("kernels")["gpu"]),
    }


def _speed_table(result: Result) -> str:
    rows: Mapping[str, Mapping[str, Any]] = result["rows"]
    lines = (_speed_line(name, row, rows[base_of(name)]) for name, row in rows.items() if "error" not in row)
    failed = [f"{name}: {row['error']}" for name, row in rows.items() if "error" in row]
    return "\n\n".join([markdown_table(SPEED_HEAD, lines), *failed, _about(result)])


def _speed_line(name: str, row: Mapping[str, Any], plain: Mapping[str, Any]) -> list[str]:
    # Where 0 are computed, compiled blocks hid what was counted.
    ticks, computed = row["ticks"], row["computed"]
    return [
        name,
        f"{computed} of {ticks}" if computed else "-",
        f"{row['wall_s']:.2f}",
        f"{plain['wall_s'] / row['wall_s']:.2f}x",
        f"{ticks / computed:.2f}x" if computed else "-",
        f"{row['reused_ms']:.1f}" if row.get("reused_ms") is not None else "-",
        f"{row['first_run_s']:.2f}",
        f"{row['peak_bytes'] / 2**30:.2f}",
        str(sum(row["reads"].values())) if "reads" in row else "-",
    ]


def _weights_table(results: Mapping[str, Result]) -> str:
    """Quantised weights in eager and in compiled blocks, and a cache that reuses every second step, beside plain eager ones."""
    lines: list[list[str]] = []
    for result in (results[name] for name in sorted(results, reverse=True)):
        measured = [row for row in result["rows"] if "refused" not in row]
        with_cache = {row["weights"]: row["seconds"] for row in measured if row["interval"] > 1}
        for row in (row for row in measured if row["interval"] == 1):
            kind, whole, ticks = row["weights"], row["seconds"], result["workload"]["ticks"]
            cached = with_cache[kind]
            lines.append(
                [
                    "compiled" if result["workload"]["compiled"] else "eager",
                    kind,
                    f"{row['model_bytes'] / 2**30:.1f}",
                    f"{1e3 * whole / ticks:.0f}",
                    f"{1e3 * cached / ticks:.0f}",
                    f"{whole / cached:.2f}x",
                ]
            )
    return "\n\n".join(
        [markdown_table(WEIGHTS_HEAD, named_once(lines)), *(_about(each) for each in results.values())]
    )


def _language_table(results: Sequence[Result]) -> str:
    lines = []
    for batch, rates in (each for result in results for each in result["tokens_per_second"].items()):
        for name, rate in rates.items():
            run = RunName.of(name)
            lines.append(
                [
                    batch,
                    run.cache,
                    run.decoding,
                    f"{rate:.0f}",
                    f"{rate / rates[run.plain]:.2f}x",
                ]
            )
    return "\n\n".join([markdown_table(LANGUAGE_HEAD, named_once(lines)), *map(_about, results)])


def _kernels_table(result: Result) -> str:
    rows: Iterable[Mapping[str, Any]] = result["rows"]
    lines = (
        [
            row["model"],
            row["kernel"],
            f"{row['bytes_per_second'] / 1e12:.2f}",
            f"{row['share_of_copy']:.0%}",
            f"{row['over_eager']:.1f}x",
            f"{row['over_compiled']:.2f}x",
            f"{row['host_microseconds']:.0f}",
            "met" if row["meets_targets"] else "missed",
        ]
        for row in rows
    )
    return f"{markdown_table(KERNEL_HEAD, named_once(lines))}\n\n{_about(result)}"


def _about(result: Result) -> str:
    header = result["header"]
    versions = ", ".join(f"{name} {header['versions'][name]}" for name in ("torch", "triton", "diffusers"))
    return f"{header['device']}, {versions}, {header['date']}: `{header['command']}`."
