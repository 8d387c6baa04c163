"""Visit: what one forward of a denoiser does at a site inside it."""

from dataclasses import dataclass
from typing import Any

from diffcache.discovery.sites import Site
from diffcache.schedulers.steps import Step, Verdict
from diffcache.store.rings import Store, Tensors


@dataclass(slots=True)
class Visit:
    """What one forward is to do at a site; `num_called` of the units of one that it skips have been called.

    One that is `verified` is computed too, and the forward goes on with the prediction. So is one that an observer looks at. Neither is
    `passed_over`.
    """

    site: Site
    last: str
    step: Step
    verdicts: list[Verdict]
    skips: bool
    store: Store
    passed_over: bool
    num_called: int = 0
    verified: bool = False

    @property
    def left_out(self) -> float:
        """Share of the denoiser's work that was not computed here."""
        return self.site.share * self.num_called / len(self.site.units) if self.passed_over else 0.0

    def reused(self, bases: Tensors, given: Tensors) -> Any:
        """What the site gives where it is reused.

        Args:
            bases: the arguments that its streams are residuals to.
            given: the arguments of its first unit, in whose form it gives that.
        """
        value = self.store.value(self.verdicts[0].decision, self.step, 0, bases)
        return self.store.learned.join(value, given)
