"""Markdown tables, and pages with places for them."""

import re
from collections.abc import Iterable, Mapping, Sequence

TABLE = re.compile(r"(?<=<!-- table: )([\w.]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def grouped(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Rows whose cells after the first are equal are one, their first cells joined by semicolons; in the order of the first of each."""
    names: dict[tuple[str, ...], list[str]] = {}
    for first, *others in rows:
        names.setdefault(tuple(others), []).append(first)
    return [["; ".join(of), *others] for others, of in names.items()]


def named_once(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """The first cell of a row is empty where it is that of the row above."""
    found, above = [], None
    for first, *others in rows:
        found.append(["" if first == above else first, *others])
        above = first
    return found


def with_tables(page: str, tables: Mapping[str, str]) -> str:
    """A page with its tables replaced; each stands between `<!-- table: name -->` and `<!-- end -->`.

    Raises:
        KeyError: the page has a table that is not among `tables`.
    """
    return TABLE.sub(lambda found: f"{found[1]}{found[2]}\n{tables[found[1]]}\n\n", page)
