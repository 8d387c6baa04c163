"""Sites: the places of a denoiser that can be cached, or the reason why not; a printable table of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Site:
    """A place of a denoiser.

    Attributes:
        name: "model", "stack", a module's path, "first..last", or "depth 1".
        kind: "model", "stack", "range", "block", "self-attention", "cross-attention", "joint-attention",
            "feed-forward", "parallel" (attention and feed-forward side by side) or "depth".
        units: names of the units that it spans, in order.
        continues: for an output of its last unit, by place, the argument of which it is the continuation: learned
            from the next call of a unit of the same class.
        streams: the tensors that its last unit returns, by shape.
        parameters: number of parameters that it spans.
        share: of the forward's floating-point operations.
        reason: why it cannot be cached; None where it can.
    """

    name: str
    kind: str
    units: tuple[str, ...]
    streams: tuple[tuple[int, ...], ...]
    parameters: int
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
        return next(site for site in self.sites if site.name == name)

    def of_kind(self, kind: str) -> list[Site]:
        return [site for site in self.sites if site.kind == kind]

    def __str__(self) -> str:
        rows = [("site", "kind", "streams", "parameters", "share", "")]
        for site in self.sites:
            streams = " ".join("x".join(map(str, shape)) for shape in site.streams)
            parameters, share = f"{site.parameters:,}", f"{site.share:.1%}"
            rows.append(
                (
                    site.name,
                    site.kind,
                    streams,
                    parameters,
                    share,
                    f"no: {site.reason}" if site.reason else "",
                )
            )
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]])
            for row in rows
        ]
        return "\n".join([self.denoiser, *(line.rstrip() for line in lines)])
