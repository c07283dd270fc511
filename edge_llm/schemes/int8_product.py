"""What weights have in common whose integers are multiplied as INT8, in whatever form they are kept."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from kernels import ThreadPool, linear
from kernels.program import Program


class Int8Product:
    """The product of an opened weight by its `native` form."""

    input_scale: float
    """Static per-tensor scale s of the activations."""
    weight_scale: np.ndarray
    """float32 [N]."""
    residual: bool
    """The cold residual is added; else what overflows is clipped."""

    @property
    def native(self) -> linear.Int8Linear:
        """The weight for the kernels, which check it when it is made and trust it from then on."""
        raise NotImplementedError

    @cached_property
    def product_scale(self) -> np.ndarray:
        """input_scale * weight_scale, what an int32 sum is multiplied with: float32 [N]."""
        return np.asarray(np.float32(self.input_scale) * self.weight_scale)

    def apply(
        self,
        x: np.ndarray,
        pool: ThreadPool,
        *,
        add: np.ndarray | None = None,
        shadow: bool = True,
        gain: np.ndarray | None = None,
        eps: float = 0.0,
        swiglu: bool = False,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        keep = shadow and self.residual
        return linear.linear(x, self.native, pool, add=add, shadow=keep, gain=gain, eps=eps, swiglu=swiglu, out=out)

    def add_to(
        self,
        program: Program,
        x: np.ndarray,
        *,
        add: np.ndarray | None,
        shadow: bool,
        gain: np.ndarray | None,
        eps: float,
        swiglu: bool,
        out: np.ndarray,
    ) -> bool:
        keep = shadow and self.residual
        program.linear(x, self.native, add=add, shadow=keep, gain=gain, eps=eps, swiglu=swiglu, out=out)
        return True
