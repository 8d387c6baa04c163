"""Progress: where a run stands."""

from dataclasses import dataclass

from diffcache.noise_schedulers.timetable import Timetable


@dataclass(slots=True)
class Progress:
    """Where a run stands.

    Attributes:
        timetable: its ticks and noise levels.
        tick: the current tick.
        called: a denoiser has been called in this tick.
        over: all ticks are done: a further call belongs to another run.
        lost: several samples are stepped one after another at each step (panoramas), or a step of a hand-written loop was
            begun again: ticks cannot be told apart, and everything is computed.
        hand_written: the loop is: guidance passes are told apart by tensors that stay the same objects, else by their order.
        shows_steps: the noise scheduler's steps are observed.
        unsure: nothing has told yet that this is the loop. Calls may come before it, which keep the keys and values of reference pictures.
    """

    timetable: Timetable
    tick: int = 0
    called: bool = False
    over: bool = False
    lost: bool = False
    hand_written: bool = False
    shows_steps: bool = True
    unsure: bool = False
