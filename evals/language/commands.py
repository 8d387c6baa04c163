"""Caches on the language testbed: how exactly they write and how much they compute, or how fast they are."""

import argparse
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from typing import Any

import torch

from diffcache.api import accelerate
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.results import read_result, write_result
from diffcache.evals.language import benchmark, staleness, wordchain
from diffcache.evals.language.bound import share_of_bound
from diffcache.evals.language.host import host_cost
from diffcache.evals.language.model_shapes import SHAPES
from diffcache.evals.language.run_names import PLAIN, RunName
from diffcache.language.recipes.base import LanguageConfig

TEST_SEED = 1
THEN = " ; "
"""Between the commands of a result that several have filled."""


def accuracy(args: argparse.Namespace) -> None:
    """Measures what the file does not hold yet, and writes it after each row."""
    prompts = wordchain.prompts(args.prompts, benchmark.PROMPT_WORDS, TEST_SEED)
    rows = _stored_rows(args)
    done = {(row.cache, row.rule) for row in rows}
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        for rule in args.rules:
            writing = benchmark.Writing(args.decoding, rule, args.batch)
            for name, config in benchmark.contenders(args.decoding).items():
                wanted = not args.only or name in args.only or (name == "plain" and not args.unpaired)
                if wanted and (name, rule) not in done:
                    rows.append(benchmark.accuracy(name, config, prompts, writing, pool))
                    print(benchmark.accuracy_table(rows), flush=True)
                    _save_rows(args, rows)


def _stored_rows(args: argparse.Namespace) -> list[benchmark.Row]:
    """What earlier commands have measured with this decoding and batch, and left in the file."""
    if args.json is None or not args.json.exists():
        return []
    found = read_result(args.json)
    if (found["decoding"], found["batch"]) != (args.decoding, args.batch):
        raise SystemExit(f"{args.json} holds another decoding or batch: choose another file.")
    return [benchmark.Row(**row) for row in found["rows"]]


def _save_rows(args: argparse.Namespace, rows: list[benchmark.Row]) -> None:
    """Writes the rows so far; the header names every command that has measured some of them."""
    if args.json is None:
        return
    made = header()
    if args.json.exists():
        earlier = read_result(args.json)["header"]["command"].split(THEN)
        made["command"] = THEN.join(dict.fromkeys([*earlier, made["command"]]))
    figures = {"decoding": args.decoding, "batch": args.batch, "rows": benchmark.as_json(rows)}
    write_result(args.json, made, figures)


def speed(args: argparse.Namespace) -> None:
    """Compares each cache with the plain model under the same rule, and with the first plain run of all."""
    shape = SHAPES.get(args.model)
    model = benchmark.load().to(args.device) if shape is None else shape.build(args.device)
    length = {} if shape is None else {"gen_length": shape.gen_length}
    results = {}
    for batch in args.batches:
        if shape is None:
            prompts = wordchain.prompts(batch, benchmark.PROMPT_WORDS, TEST_SEED)
        else:
            prompts = shape.prompts(batch)
        runs = {name: (config, {**length, **options}) for name, (config, options) in _runs_of(args).items()}
        rates = {}
        for rates in benchmark.throughput(model, prompts.to(args.device), runs, args.repeats):
            results[str(batch)] = {name: round(rate, 2) for name, rate in rates.items()}
            _write_speed(args, results)
        first = next(iter(rates.values()))
        print(f"\nbatch {batch}: tokens per second (cache alone, total)")
        for name, rate in rates.items():
            alone, total = rate / rates[RunName.of(name).plain], rate / first
            print(f"  {name:55} {rate:9.1f} {alone:7.2f}x {total:7.2f}x")


def _write_speed(args: argparse.Namespace, results: dict[str, dict[str, float]]) -> None:
    """After each run: a command that is cut off leaves something."""
    if args.json is not None:
        clock = "CPU time of one thread" if args.device == "cpu" else "wall time"
        settings = {"clock": clock, "model": args.model, "repeats": args.repeats}
        write_result(args.json, header(args.device), {**settings, "tokens_per_second": results})


def _runs_of(args: argparse.Namespace) -> dict[str, tuple[LanguageConfig | None, dict[str, Any]]]:
    """Cache and options of `generate` for each run, by name."""
    return {
        str(RunName(name, decoding, rule)): (config, {**where, **benchmark.RULES[rule]})
        for decoding, where in benchmark.DECODINGS.items()
        for rule in args.rules
        for name, config in benchmark.contenders(decoding).items()
        if name == PLAIN or (name in args.only if args.only else not name.startswith("control"))
    }


def host(args: argparse.Namespace) -> None:
    """What a call costs the host, in a model of 32 tiny layers: the sampler and the cache, not the mathematics."""
    shape = replace(SHAPES["tiny"], layers=args.layers)
    prompts, rows = shape.prompts(1).to(args.device), {}
    for name in args.only or ("plain", "default", "dkv-decode", "elastic-cache", "dllm-cache"):
        torch.manual_seed(0)
        model = shape.build(args.device)
        if name != "plain":
            accelerate(model, None if name == "default" else name)
        rows[name] = asdict(host_cost(model, prompts, gen_length=shape.gen_length))
        print(name, rows[name], flush=True)
    if args.json is not None:
        write_result(args.json, header(args.device), {"layers": args.layers, "a_call": rows})


def bound(args: argparse.Namespace) -> None:
    """How much of what the operations allow a cache gains, one token for each call, in CPU time of one process."""
    rows = []
    for batch in args.batches:
        for name in args.only or ("default",):
            row = share_of_bound(SHAPES["medium"], batch, None if name == "default" else name, args.decoding)
            rows.append({"cache": name, "written in": args.decoding, "batch": batch, **asdict(row)})
            print(rows[-1], flush=True)
            if args.json is not None:
                write_result(args.json, header(), {"model": "medium", "rows": rows})


def curves(args: argparse.Namespace) -> None:
    """Right pages by refresh interval on texts for fitting; then what was chosen, and the ends of each curve, on others."""
    points: list[staleness.Point] = []
    if args.json is not None and args.json.exists():
        points = [staleness.Point(**point) for point in read_result(args.json)["points"]]
    fit = list(staleness.wanted(args.only))
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        _measure(args, points, [(*point, staleness.FIT_SEED) for point in fit], pool)
        best = staleness.chosen(points)
        scored = [
            (*point, staleness.SCORE_SEED)
            for point in fit
            if point[2] in (None, staleness.NEVER, -1.01, best.get(point[:2]))
        ]
        _measure(args, points, scored, pool)
    print(staleness.curve_table(points))


def _measure(
    args: argparse.Namespace,
    points: list[staleness.Point],
    asked: list[tuple[str, str, Any, int]],
    pool: Executor,
) -> None:
    """Measures the points that are not there yet, and writes the file after each."""
    done = {(point.way, point.method, point.setting, point.seed) for point in points}
    running = [pool.submit(staleness.measure, *point, args.texts) for point in asked if point not in done]
    for each in running:
        points.append(each.result())
        print(points[-1], flush=True)
        if args.json is not None:
            write_result(args.json, header(), {"points": staleness.as_json(points)})


COMMANDS: Mapping[str, Callable[[argparse.Namespace], None]] = {
    "accuracy": accuracy,
    "speed": speed,
    "staleness": curves,
    "host": host,
    "bound": bound,
}
"""What the options of `scripts/measure/language.py` ask for, by name."""
