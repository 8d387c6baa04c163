"""The table of docs/trajectory.md on covariances that were measured in another number of steps."""

from diffcache.evals.harness.markdown import markdown_table, named_once
from diffcache.evals.harness.results import stored
from diffcache.evals.tables.gains import against, even_of, medians


def transfer_steps_table() -> str:
    """Medians over testbeds for each number of steps and of ticks; and where the carried covariance loses."""
    found = stored("transfer_steps")
    rows = [{"testbed": name, **row} for name, result in found.items() for row in result["rows"]]
    result = next(iter(found.values()))
    header = result["header"]
    there = f"measured in {rows[0]['measured_in']} steps"
    head = ["steps", "ticks", "`speedup=`", there, "measured in as many steps"]
    others = {
        "`speedup=`": lambda row: float(row["prior"]),
        "what was measured in as many steps": lambda row: float(row["own"]),
        "even ticks": even_of,
    }
    return (
        f"{markdown_table(head, named_once(medians(rows, ['prior', 'transferred', 'own'])))}\n\n"
        f"{against(rows, 'transferred', others)}\n\n"
        f"{len(found)} testbeds, {result['samples']} samples, {header['device']}, {header['date']}."
    )
