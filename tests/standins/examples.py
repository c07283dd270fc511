"""Kernels small enough to be right at sight, for the tests of the stand-ins themselves."""

from __future__ import annotations

from typing import Any

import torch


def npu_swiglu(input: torch.Tensor, dim: int = -1) -> torch.Tensor:
    gate, up = input.float().chunk(2, dim)
    return (torch.nn.functional.silu(gate) * up).to(input.dtype)


def npu_rms_norm(input: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    rstd = (input.float().square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return (input.float() * rstd * gamma.float()).to(input.dtype), rstd


def npu_quantize(input: torch.Tensor, *_: Any) -> torch.Tensor:
    """Wrong: another dtype than the card's."""
    return input.round()


def npu_reshape_and_cache(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    key_cache.flatten(0, 1)[slots.long()] = key
    value_cache.flatten(0, 1)[slots.long()] = value


def npu_paged_attention_splitfuse_v2(*operands: Any, mask_type: int | None = 5, out: torch.Tensor) -> None:
    """How many rows each sequence has, for each of its rows."""
    lengths = operands[6]
    out.copy_(lengths.repeat_interleave(lengths)[:, None, None].expand(out.shape))


IMPLEMENTATIONS = {
    "npu::npu_swiglu": npu_swiglu,
    "npu::npu_rms_norm": npu_rms_norm,
    "npu::npu_quantize": npu_quantize,
    "atb::_npu_reshape_and_cache": npu_reshape_and_cache,
    "atb::_npu_paged_attention_splitfuse_v2": npu_paged_attention_splitfuse_v2,
}
