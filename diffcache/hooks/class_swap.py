"""Swaps the class of one instance for a generated subclass of its own class, and back.

No class is patched, and nothing is left in the instance's `__dict__`. The subclass has its base's name and compares equal
to it, because Diffusers' `from_pipe` asks whether `type(component)` is among the expected classes. So logs,
`save_pretrained` and `from_pipe` see no difference. Copies and pickles are plain instances of the base.
"""

import copyreg
import threading
from collections.abc import Callable
from typing import Any

Override = Callable[[type], dict[str, Any]]
"""Makes the subclass's attributes from its base."""

_BASE = "_diffcache_base"
_NEW_OBJECT = vars(copyreg)["__newobj__"]
_lock = threading.RLock()
_metaclasses: dict[type, type] = {}
_subclasses: dict[tuple[int, Override], type] = {}


def is_swapped(instance: object) -> bool:
    return _BASE in vars(type(instance))


def base_class(cls: type) -> type:
    """The base of a class that was generated here; any other class itself."""
    base: type = vars(cls).get(_BASE, cls)
    return base


def swap_in(instance: object, override: Override) -> bool:
    """Gives `instance` the generated subclass of its class.

    Returns:
        False if it has one already: nothing is changed then.

    Raises:
        TypeError: Python cannot change the class of this kind of object.
    """
    with _lock:
        if is_swapped(instance):
            return False
        object.__setattr__(instance, "__class__", _subclass(type(instance), override))
        return True


def swap_out(instance: object) -> None:
    """Gives `instance` its own class back."""
    with _lock:
        if is_swapped(instance):
            object.__setattr__(instance, "__class__", base_class(type(instance)))


def _subclass(base: type, override: Override) -> type:
    """The subclass of a base with an override, made once. It keeps its base alive, so that the base's id stays unique."""
    key = (id(base), override)
    if key not in _subclasses:
        names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
        members = {**names, "__slots__": (), _BASE: base, "__reduce_ex__": _reduce_to(base), **override(base)}
        _subclasses[key] = _metaclass(type(base))(base.__name__, (base,), members)
    return _subclasses[key]


def _metaclass(base: type) -> type:
    """A subclass of a metaclass, whose classes compare equal to their bases."""

    def equals(cls: type, other: object) -> bool:
        return other is cls or other is base_class(cls)

    def hashed(cls: type) -> int:
        return hash(base_class(cls)) if base_class(cls) is not cls else object.__hash__(cls)

    if base not in _metaclasses:
        _metaclasses[base] = type(base.__name__, (base,), {"__eq__": equals, "__hash__": hashed})
    return _metaclasses[base]


def _reduce_to(base: type) -> Callable[[Any, Any], Any]:
    """A `__reduce_ex__` that copies and pickles an instance as one of the base."""

    def reduce_ex(self: Any, protocol: Any) -> Any:
        reduced = base.__reduce_ex__(self, protocol)  # type: ignore[call-arg]
        if not isinstance(reduced, tuple):
            return reduced
        make, args, *rest = reduced
        if make is _NEW_OBJECT and len(args) == 1:  # pickle accepts only the instance's own class there
            return (vars(copyreg)["_reconstructor"], (base, object, None), *rest)
        plain = tuple(base if arg is type(self) else arg for arg in args)
        return (base if make is type(self) else make, plain, *rest)

    return reduce_ex
