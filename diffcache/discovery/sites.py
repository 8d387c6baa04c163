"""Sites: the parts of a denoiser that can be cached, or the reason why they cannot; a printable table of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Site:
    """A part of a denoiser whose output can be reused.

    Attributes:
        name: "model", "stack", a module's path, "first..last", or "depth 1".
        kind: "model", "stack", "range", "block", "self-attention", "cross-attention", "joint-attention",
            "feed-forward", "parallel" (attention and feed-forward side by side) or "depth".
        units: names of the units that it spans, in order.
        streams: shapes of the tensors that its last unit returns.
        parameters: number of parameters that it spans; None where no table was asked for.
        share: its share of the forward's floating-point operations.
        reason: why it cannot be cached; None where it can.
        continues: which argument each output of its last unit continues: path of the argument, by index of the output.
            The next unit of the same class tells: it is given output i as the argument at `continues[i]`.
    """

    name: str
    kind: str
    units: tuple[str, ...]
    streams: tuple[tuple[int, ...], ...]
    parameters: int | None
    share: float
    reason: str | None = None
    continues: Mapping[int, str] = field(default_factory=dict)


class SiteTable:
    """The sites of a denoiser, in the order in which the forward reaches them; printable."""

    def __init__(self, denoiser: str, sites: list[Site]) -> None:
        self.denoiser = denoiser
        self.sites = sites

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def __getitem__(self, name: str) -> Site:
        """The site of this name.

        Raises:
            KeyError: there is none.
        """
        return {site.name: site for site in self.sites}[name]

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        rows = [("site", "kind", "streams", "parameters", "share", "")]
        for site in self.sites:
            streams = " ".join("x".join(map(str, shape)) for shape in site.streams)
            parameters = "" if site.parameters is None else f"{site.parameters:,}"
            share = f"{site.share:.1%}"
            reason = f"no: {site.reason}" if site.reason else ""
            rows.append((site.name, site.kind, streams, parameters, share, reason))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]])
            for row in rows
        ]
        return "\n".join([self.denoiser, *(line.rstrip() for line in lines)])
