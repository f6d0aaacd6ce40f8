"""Which kernels compute the margin: torch's own operations or, where the environment asks for them, Triton's."""

from __future__ import annotations

import os
from types import ModuleType

from torch import Tensor

from curriculoss.errors import InvalidValueError

KERNEL = os.environ.get("CURRICULOSS_KERNEL") or "torch"


def triton_kernels(logits: Tensor) -> ModuleType | None:
    """The room of Triton's kernels if they are asked for and can read these logits, otherwise None."""
    if KERNEL == "torch":
        return None
    if KERNEL != "triton":
        raise InvalidValueError(f"CURRICULOSS_KERNEL expects torch or triton, got {KERNEL!r:.60}")
    try:
        from curriculoss import _triton  # needs triton, which not everybody has
    except ModuleNotFoundError as missing:
        install = "pip install 'curriculoss[gpu]'"
        raise InvalidValueError(f"CURRICULOSS_KERNEL=triton needs {missing.name}: {install}") from None
    return _triton if (logits.is_cuda or _triton.INTERPRETED) and logits.dtype in _triton.DTYPES else None
