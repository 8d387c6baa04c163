"""Lists and dicts that a call was given hold again what they held, the same objects as before."""

from __future__ import annotations

from collections import OrderedDict

from diffcache.host.argument_lists import ArgumentLists


def test_lists_and_dicts_hold_again_what_they_held() -> None:
    residuals, cache, inner = [1, 2], {"k": 3}, [5]
    args, kwargs = ("x", (residuals, "y")), {"cache": cache, "nested": {"inner": inner}}
    given = ArgumentLists((args, kwargs))
    residuals.pop(0)
    cache.update(k=4, v=5)
    inner.append(6)
    kwargs["nested"].pop("inner")  # type: ignore[union-attr]
    given.put_back()
    assert residuals == [1, 2]
    assert cache == {"k": 3}
    assert inner == [5]
    assert kwargs["nested"]["inner"] is inner  # type: ignore[index]


def test_other_objects_stay_as_the_call_left_them() -> None:
    cache, kwargs = OrderedDict(k=1), {"y": None}
    given = ArgumentLists((("x", (1, cache)), kwargs))
    cache["k"] = 2
    kwargs["z"] = None
    given.put_back()
    assert cache == {"k": 2}
    assert kwargs == {"y": None}
