"""Swapping the class of one instance for a generated subclass of its own class, and back.

Nobody's class is patched and nothing is left in the instance's `__dict__`. The subclass has its base's name, so logs,
`save_pretrained` and `from_pipe` see no difference; copies and pickles are instances of the base, plain.
"""

import copyreg
import threading
from collections.abc import Callable
from typing import Any

Override = Callable[[type], dict[str, Any]]
"""Makes the attributes of the subclass, given its base."""

_NEW_OBJECT = vars(copyreg)["__newobj__"]
_lock = threading.Lock()
_subclasses: dict[tuple[type, Override], type] = {}
_bases: dict[type, type] = {}


def is_swapped(instance: object) -> bool:
    return type(instance) in _bases


def base_class(cls: type) -> type:
    """The class that `cls` stands for, if it was generated here; else `cls` itself."""
    return _bases.get(cls, cls)


def swap_in(instance: object, override: Override) -> bool:
    """Makes `instance` one of the generated subclass; False if it already is.

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
            object.__setattr__(instance, "__class__", _bases[type(instance)])


def _subclass(base: type, override: Override) -> type:
    key = (base, override)
    if key not in _subclasses:
        names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
        members = {**names, "__slots__": (), "__reduce_ex__": _reduce_to(base), **override(base)}
        subclass = type(base)(base.__name__, (base,), members)
        _bases[subclass] = base
        _subclasses[key] = subclass
    return _subclasses[key]


def _reduce_to(base: type) -> Callable[[Any, Any], Any]:
    def reduce_ex(self: Any, protocol: Any) -> Any:
        reduced = base.__reduce_ex__(self, protocol)  # type: ignore[call-arg]
        if not isinstance(reduced, tuple):
            return reduced
        make, args, *rest = reduced
        if make is _NEW_OBJECT and args == (type(self),):  # pickle insists on the instance's own class there
            return (copyreg._reconstructor, (base, object, None), *rest)  # type: ignore[attr-defined]
        plain = tuple(base if arg is type(self) else arg for arg in args)
        return (base if make is type(self) else make, plain, *rest)

    return reduce_ex
