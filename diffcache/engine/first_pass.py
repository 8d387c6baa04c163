"""The first call of a guidance pass with sites inside the denoiser: what it computed is stored, and the sites are found."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from diffcache.discovery.candidates import Arguments
from diffcache.discovery.first_call import compute_first_call
from diffcache.discovery.wanted import Request
from diffcache.engine.branch import Branch
from diffcache.engine.execution import Invocation, Parts
from diffcache.host.call import Call
from diffcache.reports.records import Done
from diffcache.schedulers.steps import Step
from diffcache.store.rings import Store
from diffcache.store.streams import Basis, Layout

STREAMS = ("stack", "range", "block")
"""Kinds of sites through which the hidden streams pass: only these can be stored as a residual."""


def compute_first_pass(parts: Parts, asked: Invocation, step: Step, branch: Branch) -> tuple[Any, list[Done]]:
    """Computes a branch's first call, and finds its sites. All of them are computed, because nothing is stored yet.

    Returns:
        What the denoiser returned, and what was done at each site.
    """
    choices, decider, call = parts.choices, parts.decider, asked.call
    request = Request(choices.sites_in(branch.name), choices.tap, asked.reuses_memory)
    keeper = _Keeper(parts, branch, step, with_outputs=decider.looks_at_outputs)
    first = compute_first_call(asked.module, asked.forward, call, request, keeper)
    branch.cuts, branch.sources = first.cuts, Layout(call, first.output, basis="residual").sources()
    seen = call.latents if choices.tap is None else first.seen or []
    sites = first.cuts.sites
    decided = decider.site_verdicts(step, branch, sites, lambda lane: [])
    done = [Done(at, verdicts, site.share) for site, (at, verdicts) in zip(sites, decided, strict=True)]
    decider.arrived(branch, 0, seen)
    for at, *_ in done:
        kept = first.kept.get(at.site)
        if kept is not None:
            branch.stores[at.site] = kept.store
            decider.observe(at, kept.store, 0, kept.outputs)
            decider.computed(branch, 0, at, seen, kept.outputs)
    return first.output, done


def store_site(
    parts: Parts, store: Store, step: Step, first: Call, output: Any, continues: Mapping[int, str]
) -> list[Tensor]:
    """Learns how what a site's last unit returned splits, against what its first was given, and stores it.

    Args:
        parts: say whether residuals are stored.
        store: the site's.
        step: of it, the tick and the kind of the site count.
        first: the call of the site's first unit.
        output: what its last unit returned.
        continues: `Site.continues`.

    Returns:
        The output's tensors.
    """
    is_stream = parts.choices.basis == "residual" and step.kind in STREAMS
    basis: Basis = "residual" if is_stream else "output"  # what flows inside has no velocity
    layout = store.learn(first, output, basis=basis, continues=continues)
    outputs = layout.split(output)
    store.push(step.tick, 0, layout.pairs(first.tensors, outputs))
    return outputs


@dataclass(slots=True)
class _Kept:
    """What has been stored of what may be a site; and copies of its tensors, where somebody looks at these."""

    store: Store
    outputs: list[Tensor]


@dataclass(slots=True)
class _Keeper:
    """Stores what may be sites."""

    parts: Parts
    branch: Branch
    step: Step
    with_outputs: bool

    def keep(self, kind: str, first: Call, output: Any, continues: Mapping[int, str]) -> _Kept:
        store = Store(self.branch.setup)
        store.empty(1)
        step = self.step._replace(kind=kind)
        outputs = store_site(self.parts, store, step, first, output, continues)
        return _Kept(store, [output.clone() for output in outputs] if self.with_outputs else [])

    def keep_again(
        self, like: _Kept, kind: str, call: Arguments, output: Any, continues: Mapping[int, str]
    ) -> _Kept:
        layout = like.store.learned
        pairs = layout.pairs_if_fits(output, layout.given(*call[1:]))
        if pairs is None:
            return self.keep(kind, Call.of(*call), output, continues)
        store = Store(self.branch.setup)
        store.empty(1)
        store.layout = layout
        store.push(self.step.tick, 0, pairs)
        return _Kept(store, [own.clone() for own, _ in pairs] if self.with_outputs else [])

    def waiting(self, nbytes: Callable[[], int]) -> None:
        """Only a plan counts these bytes."""
