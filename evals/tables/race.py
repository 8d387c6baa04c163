"""The tables of the race: of README.md, docs/race.md and docs/measured/race.md."""

import re
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from diffcache.evals.harness.markdown import markdown_table, named_once
from diffcache.evals.race import ours
from diffcache.evals.race.frontier import nearest_below
from diffcache.evals.race.result import RaceResult
from diffcache.evals.race.row import ROUNDING
from diffcache.evals.race.standings import (
    PEERS,
    PUBLISHED,
    Difference,
    Standing,
    at_budgets,
    best_of,
    full_run_to_truth,
    names_of,
    own,
    standing,
    truth_standing,
)
from diffcache.evals.testbeds import splits

CLASS = re.compile(r"'?\w+(Pipeline|Model)\b(' object)?")
SUMMARISED = (2.0, 3.0)
"""Budgets in the README."""
TALLY = ("rows", "ahead", "behind", "cannot be told", "median difference")
TRUE = {ours.SPEEDUP: "`speedup=`", ours.CACHED_SOLVER: "best solver and `speedup=`"}
"""Compared with the true solution."""
SHOWN = {ours.SPEEDUP: "`speedup=`", ours.EVEN: "even ticks", ours.TUNED: "`tune`"}


def race_tables(results: Sequence[RaceResult]) -> dict[str, str]:
    """All tables of the race by name."""
    return {
        "race_summary": summary_table(results),
        "race_counts": counts(results),
        "race_truth_counts": truth_counts(results),
        "race": race_table(results),
        "race_truth": truth_table(results),
        "race_typed": typed_table(results),
        "race_refused": refusals(results),
        "race_sources": sources(results),
    }


def summary_table(results: Iterable[RaceResult]) -> str:
    """A row for each budget of the README and each testbed to judge on: who loses by how much."""
    shown = {name: title for name, title in SHOWN.items() if name != ours.EVEN}
    head = [
        "testbed", "budget", "fewer steps", *shown.values(), "best peer",
        "`speedup=` minus fewer steps", "`tune` minus fewer steps", "`tune` minus best peer",
    ]  # fmt: skip
    rows = []
    for result in results:
        for budget in at_budgets(result):
            if budget in SUMMARISED and result.testbed in splits.JUDGING:
                fewer, peer = _fewer(result, budget), _best_peer(result, budget)
                mine = {name: standing(result, own(name), budget) for name in shown}
                rows.append(
                    [
                        _with_steps(result),
                        f"{budget:g}x",
                        _db(fewer),
                        *map(_db, mine.values()),
                        _named(peer),
                        _ahead(mine[ours.SPEEDUP], fewer),
                        _ahead(mine[ours.TUNED], fewer),
                        _ahead(mine[ours.TUNED], peer),
                    ]
                )
    return _without_empty(head, rows)


def counts(results: Sequence[RaceResult]) -> str:
    """How often ours are clearly ahead and clearly behind, on testbeds to judge on and on the others."""
    rows = []
    for name in (ours.SPEEDUP, ours.TUNED):
        for kind, some in _kinds(results):
            for rival in RIVALS:
                found = list(_differences(some, name, rival))
                if found:
                    rows.append([SHOWN[name], rival, kind, *_tally(found)])
    return markdown_table(["", "against", "on", *TALLY], rows)


def truth_counts(results: Sequence[RaceResult]) -> str:
    """The same of the distance to the true solution, against the best fewer-steps run."""
    rows = []
    for name, title in TRUE.items():
        for kind, some in _kinds(results):
            found = [one for result in some for one in _truth_differences(result, name)]
            if found:
                rows.append([title, kind, *_tally(found)])
    return markdown_table(["", "on", *TALLY], rows) if rows else "Not measured yet."


def _kinds(results: Sequence[RaceResult]) -> Iterator[tuple[str, list[RaceResult]]]:
    for kind, testbeds in (("judging", splits.JUDGING), ("fitting", splits.FITTING)):
        yield kind, [result for result in results if result.testbed in testbeds]


def _tally(found: Sequence[Difference]) -> list[str]:
    """The cells of `TALLY`."""
    ahead, behind = sum(one.low > 0 for one in found), sum(one.high < 0 for one in found)
    cells = (len(found), ahead, behind, len(found) - ahead - behind)
    return [*map(str, cells), f"{median(one.mean for one in found):+.1f} dB"]


def _truth_differences(result: RaceResult, name: str) -> Iterator[Difference]:
    for budget in at_budgets(result):
        one, other = (truth_standing(result, each, budget) for each in (own(name), ours.FEWER))
        if one is not None and other is not None:
            yield one.ahead_of(other)


def _differences(results: Iterable[RaceResult], name: str, rival: str) -> Iterator[Difference]:
    for result in results:
        for budget in at_budgets(result):
            one, other = standing(result, own(name), budget), RIVALS[rival](result, budget)
            if one is not None and other is not None:
                yield one.ahead_of(other)


def race_table(results: Iterable[RaceResult]) -> str:
    """A row for each testbed and budget: PSNR in dB to the full run."""
    head = [
        "testbed", "budget", "fewer steps", *SHOWN.values(), "threshold", "published", "best peer",
        "`speedup=` minus fewer steps", "minus best peer",
    ]  # fmt: skip
    return _without_empty(
        head, [_race_row(result, budget) for result in results for budget in at_budgets(result)]
    )


def _without_empty(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without columns in which nothing has been measured."""
    kept = [i for i in range(len(head)) if any(row[i] != "-" for row in rows)]
    return markdown_table([head[i] for i in kept], named_once([row[i] for i in kept] for row in rows))


def _race_row(result: RaceResult, budget: float) -> list[str]:
    fewer, peer = _fewer(result, budget), _best_peer(result, budget)
    mine = {name: standing(result, own(name), budget) for name in SHOWN}
    return [
        _with_steps(result),
        f"{budget:.3g}x",
        _db(fewer) if fewer is None else f"{_db(fewer)} {fewer.solver}",
        *map(_db, mine.values()),
        _db(standing(result, own(ours.DEFAULT_NAME), budget)),
        _named(_best_published(result, budget)),
        _named(peer),
        _ahead(mine[ours.SPEEDUP], fewer),
        _ahead(mine[ours.SPEEDUP], peer),
    ]


def truth_table(results: Iterable[RaceResult]) -> str:
    """A row for each testbed and budget: PSNR in dB to the pictures of 1000 steps."""
    head = ["testbed", "full run", "budget", "fewer steps", *TRUE.values()]
    rows = []
    for result in results:
        full = full_run_to_truth(result)
        if full is not None:
            rows += [
                [_name(result), f"{full:.1f}", *_truth_row(result, budget)] for budget in at_budgets(result)
            ]
    return markdown_table(head, named_once(rows)) if rows else "Not measured yet."


def _truth_row(result: RaceResult, budget: float) -> list[str]:
    fewer = truth_standing(result, ours.FEWER, budget)
    plain = _db(fewer) if fewer is None else f"{_db(fewer)} {fewer.solver}"
    return [f"{budget:.3g}x", plain, *(_db(truth_standing(result, own(name), budget)) for name in TRUE)]


def typed_table(results: Iterable[RaceResult]) -> str:
    """What `accelerate(pipe)` and peers give with all options left alone, beside fewer steps of no more compute."""
    head = ["testbed", "as typed", "compute", "dB", "fewer steps", "compute", "dB"]
    rows = []
    for result in results:
        for row in result.rows:
            if "defaults" in row.options:
                plain = nearest_below(result.of(ours.FEWER, "score"), row.compute)
                beside = ["", "", ""] if plain is None else [
                    str(plain.low.options["solver"]), f"{plain.low.compute:.0%}", f"{plain.low.mean_psnr:.1f}",
                ]  # fmt: skip
                name = row.contender.removeprefix("diffcache: ")
                rows.append([_name(result), name, f"{row.compute:.0%}", f"{row.mean_psnr:.1f}", *beside])
    return markdown_table(head, rows)


def refusals(results: Iterable[RaceResult]) -> str:
    """Who did not take part where: the first reason of each contender on each testbed."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for result in results:
        raced = {row.contender for row in result.rows}
        for name, why in result.refused.items():
            if name not in raced and name.split(":")[0] in PEERS:
                kind = next(iter(why.values())).replace(result.testbed, "")
                reasons.setdefault((name.split(":")[0], _short(kind)), []).append(result.testbed)
    return "\n".join(
        f"- {package} on {', '.join(dict.fromkeys(testbeds))}: {why}"
        for (package, why), testbeds in reasons.items()
    )


def sources(results: Iterable[RaceResult]) -> str:
    """Where the figures come from."""
    results = list(results)
    if not results:
        return ""
    header = results[0].header
    versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    dates = sorted({header["date"] for result in results for header in (result.header, *result.renewed)})
    return f"{header['device']}; {', '.join(dates)}; {versions}."


def _fewer(result: RaceResult, budget: float) -> Standing | None:
    return standing(result, ours.FEWER, budget)


def _best_published(result: RaceResult, budget: float) -> Standing | None:
    return best_of(result, [own(name) for name in PUBLISHED], budget)


def _best_peer(result: RaceResult, budget: float) -> Standing | None:
    return best_of(result, names_of(result, PEERS), budget)


RIVALS = {"fewer steps": _fewer, "published": _best_published, "best peer": _best_peer}
"""Whom our own methods are compared with in `counts`."""


def _name(result: RaceResult) -> str:
    """With a star where our constants were chosen."""
    return f"{result.testbed}*" if result.testbed in splits.FITTING else result.testbed


def _with_steps(result: RaceResult) -> str:
    return f"{_name(result)}, {result.steps} steps"


def _db(found: Standing | None) -> str:
    if found is None:
        return "-"
    return f"> {ROUNDING - 0.1:.1f}" if found.db > ROUNDING - 0.1 else f"{found.db:.1f}"


def _named(found: Standing | None) -> str:
    return "-" if found is None else f"{_db(found)} {found.contender.removeprefix('diffcache: ')}"


def _ahead(one: Standing | None, other: Standing | None) -> str:
    return "-" if one is None or other is None else str(one.ahead_of(other))


def _short(reason: str) -> str:
    """Without the names of classes, so that testbeds share a reason."""
    return CLASS.sub("it", reason.replace("|", "/"))[:100]
