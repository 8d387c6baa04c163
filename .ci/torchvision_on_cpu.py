"""Lets a CUDA build of torchvision be imported beside a CPU build of torch (development machines only).

torchvision's C++ library cannot load there, so its operators `nms` and `qnms` are missing and the first
`import torchvision` raises. Declaring the two before that import is all that transforms, torchmetrics, open_clip
and Diffusers need. The Makefile copies this file into the development environment, where a `.pth` line imports
it at start-up; nothing happens until torchvision is first imported.
"""

import importlib.util
import os
import sys
from importlib.abc import MetaPathFinder

_declared = []  # a library that is garbage-collected takes its operators with it


class _DeclareOperators(MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname != "torchvision":
            return None
        sys.meta_path.remove(self)
        import torch

        spec = importlib.util.find_spec("torchvision")
        if spec is not None and torch.version.cuda is None and not _library_loads(torch, spec):
            library = torch.library.Library("torchvision", "DEF")
            library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _declared.append(library)
        return spec


def _library_loads(torch, spec):
    library = os.path.join(os.path.dirname(spec.origin), "_C.so")
    try:
        torch.ops.load_library(library)
    except OSError:
        return False
    return True


sys.meta_path.insert(0, _DeclareOperators())
