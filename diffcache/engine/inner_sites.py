"""Sites inside a denoiser: its forward runs, and the units that a site spans are computed and stored, or skipped."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from diffcache.config import CacheConfig
from diffcache.discovery.cuts import Anatomy
from diffcache.discovery.first_call import learn
from diffcache.discovery.sites import Site
from diffcache.discovery.units import watched
from diffcache.engine.branches import Branch
from diffcache.engine.decider import Planner, Verdict
from diffcache.engine.observers import NOBODY
from diffcache.host.call import Call
from diffcache.noise_schedulers.timetable import Turn
from diffcache.reports.records import Done, RunRecord
from diffcache.schedulers.steps import Decision, Step
from diffcache.store.rings import Store, Tensors
from diffcache.store.streams import Layout

Forward = Callable[..., Any]
Arguments = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
"""A module, and what it is called with."""

STREAMS = ("stack", "range", "block")
"""Kinds of sites through which the hidden streams pass: only these can be stored as a residual."""

STRAYED = "the denoiser called its blocks in another order than before"


class Inside:
    """Executes the planner's verdicts at places inside one denoiser.

    Args:
        name: the denoiser's, in the report.
        places: which (see `diffcache.discovery.site_names`).
        config: the method.
        planner: decides.
        record: where every call is written down.
    """

    def __init__(
        self, name: str, places: tuple[str, ...], config: CacheConfig, planner: Planner, record: RunRecord
    ) -> None:
        self.name = name
        self.places = places
        self.residual = config.residual
        self.tap = config.tap(planner.facts)
        self.planner = planner
        self.record = record

    def run(self, module: nn.Module, forward: Forward, call: Call, turn: Turn, branch: Branch) -> Any:
        """One denoiser call: decides at each site that the forward reaches."""
        if branch.anatomy is None:
            output, done = self._learn(module, forward, call, turn, branch)
        else:
            this = _Pass(self, call, turn, branch, branch.anatomy)
            with watched(this):
                output = forward(*call.args, **call.kwargs)
            done = this.done()
            if this.strayed:
                branch.empty()
                output, done = self._learn(module, forward, call, turn, branch)
                done = [each._replace(verdicts=[Verdict(Decision.COMPUTE, STRAYED)]) for each in done]
        branch.changed = False
        self._write_down(call, turn, branch, done)
        return output

    def keep(
        self, branch: Branch, step: Step, first: Call, output: Any, continues: Mapping[int, str]
    ) -> list[Tensor]:
        """Learns how what a site's last unit returned splits, against what its first was given, and stores it.

        Returns its tensors.
        """
        store = branch.store(step.site)
        residual = self.residual and step.kind in STREAMS
        layout = store.learn(first, output, residual=residual, continues=continues)
        outputs = layout.split(output)
        store.push(step.tick, 0, layout.based(first.tensors, outputs))
        self.planner.observe(step, store, 0, outputs)
        return outputs

    def _learn(
        self, module: nn.Module, forward: Forward, call: Call, turn: Turn, branch: Branch
    ) -> tuple[Any, list[Done]]:
        """The branch's first call: computed, and watched to find its sites. Whatever is asked of it is forced."""
        verdicts: dict[str, tuple[Step, list[Verdict]]] = {}
        kept: dict[str, list[Tensor]] = {}

        def ask(site: str, kind: str) -> Step:
            step = turn.step(branch.name, site, kind)
            verdicts[site] = step, self.planner.verdicts(step, branch, lambda lane: [])
            return step

        def keep(site: str, kind: str, first: Call, output: Any, continues: Mapping[int, str]) -> None:
            kept[site] = self.keep(branch, ask(site, kind), first, output, continues)

        output, anatomy, tapped = learn(module, forward, call, self.places, self.tap, keep)
        branch.anatomy, branch.sources = anatomy, Layout(call, output, residual=True).sources()
        branch.drop_all_but({site.name for site in anatomy.sites})
        seen = call.latents if self.tap is None else tapped or []
        self.planner.arrived(branch, 0, seen)
        for site in anatomy.sites:
            if site.name not in verdicts:
                ask(site.name, site.kind)
            if site.name in kept:
                self.planner.computed(branch, 0, verdicts[site.name][0], seen, kept[site.name])
        return output, [Done(*verdicts[site.name], site.share) for site in anatomy.sites]

    def _write_down(self, call: Call, turn: Turn, branch: Branch, done: list[Done]) -> None:
        assert branch.anatomy is not None
        rest = 1 - branch.anatomy.share
        beside = Done(turn.step(branch.name), [Verdict(Decision.COMPUTE)], rest, cached=False)
        self.record.add(self.name, call.batch, [beside, *done])


@dataclass(slots=True)
class _Visit:
    """What one forward is to do at a site; `seen` of the units of one that it skips have been called."""

    site: Site
    last: str
    step: Step
    verdicts: list[Verdict]
    skips: bool
    store: Store
    seen: int = 0


class _Pass:
    """One forward after the first: its sites are known, and its units are told by path and number of calls.

    Attributes:
        strayed: a span was skipped whose units this forward calls differently: what it returned is worth nothing.
    """

    def __init__(self, inside: Inside, call: Call, turn: Turn, branch: Branch, anatomy: Anatomy) -> None:
        self.inside = inside
        self.turn = turn
        self.branch = branch
        self.anatomy = anatomy
        self.watches = anatomy.paths
        self._starts = anatomy.starts
        self._tap, self._tapped = inside.tap, anatomy.tap
        self._observed = inside.planner.observer is not NOBODY
        self.seen = call.latents if inside.tap is None else []
        self._visits: dict[str, _Visit] = {}
        self._reached: list[_Visit] = []
        self._strayed = False
        self._counts: dict[str, int] = {}
        self._here: _Visit | None = None
        self._straight: dict[str, _Visit] = {}
        self._first: Arguments
        self._given: Tensors

    @property
    def strayed(self) -> bool:
        return self._strayed or (self._here is not None and self._here.skips)

    def done(self) -> list[Done]:
        """What was done at the sites that were reached."""
        return [Done(visit.step, visit.verdicts, visit.site.share) for visit in self._reached]

    def unit(self, module: nn.Module, forward: Forward, args: Any, kwargs: dict[str, Any]) -> Any:
        path = self.watches[id(module)]
        nth = self._counts.get(path, 0)
        self._counts[path] = nth + 1
        name = path if nth == 0 else f"{path}#{nth}"  # as discovery named this call
        here = self._straight.get(name)
        if here is not None and self._here is None:
            return self._through(here, module, forward, args, kwargs)
        tap = self._tap if name == self._tapped else None
        if tap is not None and tap.is_ahead:
            self.seen = tap.ahead(module, args, kwargs)
        if name in self._starts:
            self._begin(name, module, args, kwargs)
        here = self._here
        if here is None or self._strayed:
            output = forward(*args, **kwargs)
        elif here.skips:
            output = self._skipped(here, name, module, forward, args, kwargs)
        else:
            output = forward(*args, **kwargs)
            if name == here.last:
                self._here = None
                self._computed(here, self._first, self._given, output)
        if tap is not None and not tap.is_ahead:
            self.seen = tap.after(Call(module, args, kwargs), output)
        return output

    def _through(
        self, here: _Visit, module: nn.Module, forward: Forward, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """A site of one unit that is computed, and nobody looks on: `unit` without what other sites need."""
        self._reached.append(here)
        given = here.store.learned.given(args, kwargs)
        output = forward(*args, **kwargs)
        self._computed(here, (module, args, kwargs), given, output)
        return output

    def _begin(self, name: str, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """The site that begins with this unit is reached."""
        if self._here is not None and self._here.skips:
            self._stray()
        if not self._visits:
            self._visits = self._decide()
        self._here = here = self._visits[name]
        self._reached.append(here)
        layout, self._first = here.store.layout, (module, args, kwargs)
        self._given = Call(*self._first).tensors if layout is None else layout.given(args, kwargs)
        if self._observed:
            self._announce(here)

    def _announce(self, here: _Visit) -> None:
        observer = self.inside.planner.observer
        if observer.shadow or not here.skips:
            observer.computing(self.inside.name, here.step)

    def _decide(self) -> dict[str, _Visit]:
        """For all sites at once, when the first is reached: by then signals have been seen. By first unit."""
        planner, branch, visits = self.inside.planner, self.branch, {}
        call, seen = self.turn.step(branch.name), lambda lane: self.seen
        for name, site in self._starts.items():
            step = call.at(site.name, site.kind)
            verdicts = planner.verdicts(step, branch, seen)
            skips = verdicts[0].decision is not Decision.COMPUTE
            visits[name] = _Visit(site, site.units[-1], step, verdicts, skips, branch.stores[site.name])
        if self.seen:
            planner.arrived(branch, 0, self.seen)
        if not any(visit.skips for visit in visits.values()):
            self.watches = self.anatomy.edges  # nothing is skipped: what lies between need not be seen
        if not self._observed:
            self._straight = {name: visit for name, visit in visits.items() if self._is_straight(name, visit)}
        return visits

    def _is_straight(self, name: str, visit: _Visit) -> bool:
        return not visit.skips and visit.last == name != self._tapped and visit.store.layout is not None

    def _stray(self) -> None:
        self._strayed, self._straight = True, {}

    def _skipped(
        self, here: _Visit, name: str, module: nn.Module, forward: Forward, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """What stands for a unit in a site that is reused."""
        if name != here.site.units[here.seen]:
            self._stray()
            return forward(*args, **kwargs)
        here.seen += 1
        ends = here.seen == len(here.site.units)
        if ends:
            self._here = None
        if self.inside.planner.observer.shadow:
            truth = forward(*args, **kwargs)
            return self._shadow(here, truth) if ends else truth
        return (
            self._reused(here) if ends else self.anatomy.blanks[name].make(Call(module, args, kwargs).tensors)
        )

    def _computed(self, here: _Visit, first: Arguments, given: Tensors, output: Any) -> None:
        inside, layout = self.inside, here.store.layout
        pairs = None if layout is None else layout.based_alike(output, given)
        if pairs is None:
            outputs = inside.keep(self.branch, here.step, Call(*first), output, here.site.continues)
        else:
            here.store.push(here.step.tick, 0, pairs)
            outputs = [own for own, _ in pairs]
            if self._observed:
                inside.planner.observe(here.step, here.store, 0, outputs)
        inside.planner.computed(self.branch, 0, here.step, self.seen, outputs)

    def _reused(self, here: _Visit) -> Any:
        planner, times = self.inside.planner, self.turn.timetable
        value = planner.value(here.verdicts[0], here.step, here.store, times, 0, self._given)
        return here.store.learned.join(value, self._given)

    def _shadow(self, here: _Visit, truth: Any) -> Any:
        """Predicts what has been computed, for an observer to compare, and goes on with what it says."""
        observer, layout = self.inside.planner.observer, here.store.learned
        guess, outputs = layout.split(self._reused(here)), layout.split(truth)
        features = layout.features(self._given, outputs)
        goes_on = observer.predicted(self.inside.name, here.step, guess, outputs, features)
        observer.computed(self.inside.name, here.step, features, outputs)
        return layout.join(goes_on, self._given)
