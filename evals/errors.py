"""The error of this folder: one sentence that says what is missing, and what to do."""

from diffcache.schedulers.errors import DiffcacheError


class EvaluationError(DiffcacheError):
    """A file, a folder, a package or weights are missing or cannot be read; or there are too few samples for a figure."""
