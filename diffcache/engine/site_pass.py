"""One forward of a denoiser whose sites are known: its units are computed and stored, or skipped."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from diffcache.discovery.candidates import Arguments
from diffcache.discovery.cuts import Cuts, Placeholder, holds_blank
from diffcache.discovery.sites import Site
from diffcache.discovery.unit_recorder import CallNames
from diffcache.engine.branch import Branch
from diffcache.engine.execution import CarriedUnit, Parts
from diffcache.engine.first_pass import store_site
from diffcache.engine.observers import NOBODY
from diffcache.engine.visit import Visit
from diffcache.host.call import Call, latents_of
from diffcache.schedulers.steps import Decision, Step
from diffcache.store.rings import Tensors
from diffcache.store.streams import Layout

Forward = Callable[..., Any]


class SitePass:
    """One forward whose sites are known. Its units are told by path and number of calls.

    Args:
        is_first: it is its branch's first one, and the sites are known from another branch or run. All is computed, and
            all units are watched, to see that it goes the way that it went then.

    Attributes:
        watches: the units whose calls it has to see, by identity.
        reached: the sites that the forward has come to.
        here: the site that it is in; None between sites.
        seen: what signals are measured on.
        strayed: a span was skipped whose units this forward calls differently, or whose inner values it reads: what it returned is worth nothing.
        rejected: what was reused did not stand its verification.
        extra: share of the denoiser's work that verifying took.
        beside: names of the units that were called outside of sites.
    """

    def __init__(
        self, parts: Parts, call: Call, step: Step, branch: Branch, cuts: Cuts, *, is_first: bool
    ) -> None:
        self.parts = parts
        self.name = parts.choices.facts.denoiser
        self.decider = parts.decider
        self.step = step
        self.branch = branch
        self.cuts = cuts
        self.watches: Mapping[int, str] = cuts.looked_at if is_first else cuts.paths
        self.reached: list[Visit] = []
        self.here: Visit | None = None
        self._tap, self._tapped = parts.choices.tap, cuts.tap
        self.seen = call.latents if self._tap is None else []
        self.strayed = self.rejected = False
        self.extra = 0.0
        self.beside: set[str] = set()
        self._starts = cuts.starts
        self._is_observed = parts.decider.observer is not NOBODY
        self._reuses_memory = cuts.reuses_memory
        self._visits: dict[str, Visit] = {}
        self._alone: dict[str, Visit] = {}
        self._names = CallNames()
        self._called: list[str] | None = [] if is_first else None
        self._shared: dict[Placeholder, Any] = {}
        self._first: Arguments
        self._given: Tensors
        self._bases: Tensors

    @property
    def went_astray(self) -> bool:
        """The forward is over, and did not call its units as it did when the sites were found."""
        if self._called is not None:
            return tuple(self._called) != self.cuts.calls
        return self.strayed or (self.here is not None and self.here.skips)

    @property
    def missed(self) -> list[Site]:
        """Sites that the forward has not begun, though it has called units inside them."""
        reached = {visit.site.name for visit in self.reached}
        return [
            site
            for site in self.cuts.sites
            if site.name not in reached and not self.beside.isdisjoint(site.units)
        ]

    def unit(self, module: nn.Module, forward: Forward, args: Any, kwargs: dict[str, Any]) -> Any:
        """A unit is called: runs it, or stands in for it."""
        name, here = self._names.next(self.watches[id(module)]), self.here
        # Most calls of a reused tick are these: with nothing to compute, the host is all that the tick waits for.
        if (
            here is not None
            and here.passed_over
            and not self.strayed
            and name == here.site.units[here.num_called]
            and name != self._tapped
        ):
            return self._stand_in(here, name, module, args, kwargs)
        call = self._called_unit(name, module, args, kwargs)
        try:
            next(call)
            call.send(forward(*args, **kwargs))
        except StopIteration as end:
            return end.value

    def unit_call(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> CarriedUnit:
        """A unit's call, which several runs may share: yields if it is to be computed, and returns what it gives."""
        return self._called_unit(self._names.next(self.watches[id(module)]), module, args, kwargs)

    def passes_by(self, module: nn.Module) -> bool:
        """The call of a unit whose arguments are not known, as they need not be outside of sites; False where they do."""
        name = self._names.next(self.watches[id(module)])
        if self.here is not None or name in self._starts or name == self._tapped:
            return False
        if self._called is not None:
            self._called.append(name)
        self.beside.add(name)
        return True

    def _called_unit(self, name: str, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> CarriedUnit:
        """`unit_call` of the unit's call of this name."""
        if self._called is not None:
            self._called.append(name)
        here = self._alone.get(name)
        if here is not None and self.here is None:
            return (yield from self._unit_of_its_own(here, module, args, kwargs))
        tap = self._tap if name == self._tapped else None
        if tap is not None and tap.is_ahead:
            self._see(tap.ahead(module, args, kwargs))
        if name in self._starts:
            self._begin(name, module, args, kwargs)
        here = self.here
        measures = tap is not None and not tap.is_ahead
        if here is None or self.strayed:
            self.beside.add(name)
            output = yield measures
        elif here.skips:
            output = yield from self._skipped(here, name, module, args, kwargs)
        else:
            output = yield measures or name == here.last
            if name == here.last:
                self.here = None
                self._computed(here, self._first, output)
        if tap is not None and measures:
            self._see(tap.after(latents_of(module, args, kwargs), output, self.cuts.tapped_output))
        return output

    def _see(self, seen: list[Tensor]) -> None:
        """The tap has measured this. Schedulers look at it again when a site has been computed."""
        self.seen = [tensor.clone() for tensor in seen] if self._reuses_memory else seen

    def _unit_of_its_own(
        self, here: Visit, module: nn.Module, args: Any, kwargs: dict[str, Any]
    ) -> CarriedUnit:
        """A site of one unit, which nobody observes: `_called_unit` without what other sites need."""
        self.reached.append(here)
        layout = here.store.layout
        assert layout is not None
        given = layout.given(args, kwargs)
        if here.skips:
            here.num_called += 1
            return here.reused(given, given)
        self._given, self._bases = given, _copied_bases(layout, given) if self._reuses_memory else given
        output = yield True
        self._computed(here, (module, args, kwargs), output)
        return output

    def _begin(self, name: str, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """The site that begins with this unit is reached."""
        if self.here is not None and self.here.skips:
            self.stray()
        if not self._visits:
            self._visits = self._decide()
        self.here = here = self._visits[name]
        self.reached.append(here)
        layout, self._first = here.store.layout, (module, args, kwargs)
        self._given = Call.of(*self._first).tensors if layout is None else layout.given(args, kwargs)
        self._bases = self._given
        observer = self.decider.observer
        if not here.skips or here.verified or observer.shadow:
            if self._reuses_memory and layout is not None:
                self._bases = _copied_bases(layout, self._given)
            if self._is_observed:
                observer.computing(self.name, here.step)

    def _decide(self) -> dict[str, Visit]:
        """For all sites at once, when the first is reached: by then signals have been seen. By first unit."""
        visits, branch, sites = {}, self.branch, self._starts.values()
        decided = self.decider.site_verdicts(self.step, branch, self.cuts.sites, lambda lane: self.seen)
        skips_any = False
        for name, site, (step, verdicts) in zip(self._starts, sites, decided, strict=True):
            skips = verdicts[0].decision is not Decision.COMPUTE
            skips_any = skips_any or skips
            last, store = site.units[-1], branch.store(site.name)
            passed_over = skips and not self.decider.observer.shadow
            visits[name] = visit = Visit(site, last, step, verdicts, skips, store, passed_over)
            if last == name != self._tapped and store.layout is not None and not self._is_observed:
                self._alone[name] = visit
        last_name = next(reversed(self._starts))
        last_visit = visits[last_name]
        if last_visit.skips and self.decider.verifies(branch, self.step):
            last_visit.verified, last_visit.passed_over = True, False
            self._alone.pop(last_name, None)
        if self.seen:
            self.decider.arrived(branch, 0, self.seen)
        if not skips_any and self._called is None:
            self.watches = self.cuts.edges  # nothing is skipped: what lies between need not be seen
        return visits

    def returned(self, output: Any) -> None:
        """The forward is over."""
        if any(visit.passed_over for visit in self.reached) and holds_blank(output):
            self.stray()

    def drop(self) -> None:
        """The forward was broken off: drops every tensor."""
        vars(self).clear()

    def stray(self) -> None:
        """What the forward returns is worth nothing: the call is computed again, as the branch's first."""
        self.strayed, self._alone = True, {}

    def _skipped(
        self, here: Visit, name: str, module: nn.Module, args: Any, kwargs: dict[str, Any]
    ) -> CarriedUnit:
        """What stands for a unit in a site that is reused."""
        if name != here.site.units[here.num_called]:
            self.stray()
            return (yield True)
        if here.passed_over:
            return self._stand_in(here, name, module, args, kwargs)
        if not self._passes_last(here):
            return (yield True)
        truth = yield True
        if here.verified:
            self._verify(here, truth)
        if self.decider.observer.shadow:
            return self._shadow(here, truth)
        return here.reused(self._bases, self._given)

    def _stand_in(self, here: Visit, name: str, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """What a site that is passed over returns in place of a unit: its own output for the last one, placeholders for the others."""
        if self._passes_last(here):
            return here.reused(self._bases, self._given)
        placeholder = self.cuts.placeholders[name]
        if placeholder in self._shared:
            return self._shared[placeholder]
        made = placeholder.make(Call.of(module, args, kwargs).tensors if placeholder.passes else {})
        if placeholder.may_be_shared:
            self._shared[placeholder] = made
        return made

    def _passes_last(self, here: Visit) -> bool:
        """Counts one more unit of a site that is skipped. Whether it was the last one; then the site is left."""
        here.num_called += 1
        if here.num_called < len(here.site.units):
            return False
        self.here = None
        return True

    def _computed(self, here: Visit, first: Arguments, output: Any) -> None:
        """Stores what a site has computed."""
        store, layout = here.store, here.store.layout
        pairs = None if layout is None else layout.pairs_if_fits(output, self._given, self._bases)
        if pairs is None:
            continues = here.site.continues
            outputs = store_site(self.parts, store, here.step, Call.of(*first), output, continues)
            if self._reuses_memory:
                store.empty(1)  # the arguments may have been overwritten; the next computed call is stored
        else:
            store.push(here.step.tick, 0, pairs)
            outputs = [own for own, _ in pairs]
        if self._is_observed and len(store):
            self.decider.observe(here.step, store, 0, outputs)
        self.decider.computed(self.branch, 0, here.step, self.seen, outputs)

    def _verify(self, here: Visit, truth: Any) -> None:
        """Asks whether the prediction of what has been computed is good enough."""
        layout, self.extra = here.store.learned, here.site.share
        guess, outputs = layout.split(here.reused(self._bases, self._given)), layout.split(truth)
        self.rejected = not self.decider.accepts(here.step, guess, outputs)

    def _shadow(self, here: Visit, truth: Any) -> Any:
        """Predicts what has been computed, for an observer to compare, and goes on with what it says."""
        observer, layout = self.decider.observer, here.store.learned
        guess, outputs = layout.split(here.reused(self._bases, self._given)), layout.split(truth)
        features = layout.features(self._bases, outputs)
        goes_on = observer.predicted(self.name, here.step, guess, outputs, features)
        self.decider.tell(here.step, layout, features, outputs)
        return layout.join(goes_on, self._given)


def _copied_bases(layout: Layout, given: Tensors) -> Tensors:
    """Copies of the arguments to which a site's streams are residuals, because its units may overwrite them."""
    paths = layout.sources() if layout.basis == "residual" else ()
    return {path: given[path].clone() for path in paths if given[path] is not None}
