"""What an evaluation raises when it lacks something: one sentence that says what to do."""

from diffcache.schedulers.errors import DiffcacheError


class EvaluationError(DiffcacheError):
    """A file, a folder, a package or weights that are missing or cannot be read; samples too few for a figure."""
