"""Gaussian conditioning: what computed ticks tell of a tick between or after them (Rasmussen and Williams 2006, section 2.2)."""

from collections.abc import Sequence

import numpy as np

from diffcache.trajectory.kernel import Array

BETWEEN = 1e-6
"""The noise for ticks between known ones. Weights of interpolation are small by themselves, so it need not make them smaller."""


def conditional_weights(
    covariance: Array, known: Sequence[int], wanted: Sequence[int], noise: float
) -> Array:
    """Weights of the conditional mean: E[F_t | F_c] = sum_j weights[j] F_j.

    Args:
        covariance: G of all ticks, [ticks, ticks].
        known: the computed ticks, c of them.
        wanted: the ticks to predict, t of them.
        noise: variance of the error with which ticks are known, as a fraction of each one's own. It keeps weights small.

    Returns:
        (G_cc + noise D)^-1 G_ct with D the diagonal of G_cc: [c, t].
    """
    among, towards = covariance[np.ix_(known, known)], covariance[np.ix_(known, wanted)]
    weights: Array = precision(among, noise) @ towards
    return weights


def precision(among: Array, noise: float | Array) -> Array:
    """(A + noise D)^-1 with D the diagonal of A, for a stack of covariances A, [..., c, c]; a noise for all, or one for each."""
    return np.linalg.inv(among * (1 + noise * np.eye(among.shape[-1]))).astype(np.float64)
