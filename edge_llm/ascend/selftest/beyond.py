"""Probes of what the backend does not rely on but would like to know: forms that documentation refuses or does not speak of.

A refusal is an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge_llm.ascend.npu import emulated_ops
from edge_llm.ascend.npu.pci import is_own_host
from edge_llm.ascend.selftest.graphs import captured, replayed
from edge_llm.ascend.selftest.ground import Figures, Ground, equal, near
from edge_llm.ascend.selftest.layers import ATTENTION_BOUND, FLOAT16_BOUND
from edge_llm.ascend.selftest.products import scales
from edge_llm.errors import DeviceError

ROWS, COLUMNS, OUTPUTS = 32, 896, 1152


def float_operators(ground: Ground) -> Figures:
    """Each operator of PyTorch that the backend calls, with the CPU forbidden to step in; which of them the card has not."""
    torch = ground.torch
    x, half = ground.float32(8, 64), ground.float16(8, 64)
    index = ground.int32(3, 0, 63)
    few: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "add": (lambda a, b: a + b, (x, x)),
        "mul": (lambda a, b: a * b, (x, x)),
        "neg": (lambda a: -a, (x,)),
        "add float16": (lambda a, b: a + b, (half, half)),
        "mm float16": (lambda a, b: a @ b.transpose(0, 1).contiguous(), (half, half)),
        "to float16": (lambda a: a.to(torch.float16), (x,)),
        "to float32": (lambda a: a.to(torch.float32), (half,)),
        "index_select": (lambda a, at: a.index_select(1, at), (x, index)),
        "index_copy_": (lambda a, at, b: a.index_copy_(0, at.to(torch.int64), b), (x, ground.int32(5, 0), x[6:])),
        "split": (lambda a: tuple(part.contiguous() for part in a.split((32, 16, 16), dim=1)), (half,)),
        "cat": (lambda a: torch.cat((-a[:, 32:], a[:, :32]), -1), (x,)),
        "pad int8": (lambda a: torch.nn.functional.pad(a, (0, 32)), (ground.int8(8, 64),)),
        "transpose int8": (lambda a: a.transpose(0, 1).contiguous(), (ground.int8(32, 64),)),
        "copy_": (lambda a: torch.empty_like(a).copy_(a), (half,)),
        "zeros": (lambda a: torch.zeros_like(a) + a, (half,)),
        "compare": (lambda a, b: (a[None] > b[:, None]).to(torch.float16), (index, ground.int32(1, 5))),
        "count above": (lambda a: a.abs().gt(1.0).sum(), (x,)),
    }
    errors: dict[str, str] = {}
    for name, (work, tensors) in few.items():
        try:
            found, expected = ground.result(work, *tensors), work(*(tensor.clone() for tensor in tensors))
        except (DeviceError, RuntimeError, TypeError) as error:
            errors[name] = str(error.__cause__ or error)[:500]
            continue
        pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
        wrong = [case["error"] for case in (near(one, other, FLOAT16_BOUND) for one, other in pairs) if "error" in case]
        errors |= {name: wrong[0]} if wrong else {}
    figures: Figures = {"operators": len(few), "failed": errors}
    return figures | ({"error": f"{', '.join(errors)} failed"} if errors else {})


def bfloat16(ground: Ground) -> Figures:
    """A product in bfloat16."""
    torch = ground.torch
    x, weight = ground.float32(8, 64).to(torch.bfloat16), ground.float32(64, 32).to(torch.bfloat16)
    expected = (x.double() @ weight.double()).float()
    return near(ground.result(lambda x, weight: (x @ weight).to(torch.float32), x, weight), expected, 1e-2)


def int32_product(ground: Ground) -> Figures:
    """The accumulator itself."""
    x, weight, scale = ground.int8(ROWS, COLUMNS), ground.int8(OUTPUTS, COLUMNS), ground.torch.ones(OUTPUTS)

    def work(x: Any, weight: Any, scale: Any) -> Any:
        operator = ground.operator("npu", "npu_quant_matmul")
        return operator(x1=x, x2=ground.calls.to_matmul(weight), scale=scale, output_dtype=ground.torch.int32)

    if ground.runtime.emulated:
        raise DeviceError("the emulated matmul gives float16 only")
    return equal(ground.result(work, x, weight, scale), ground.exact(x, weight))


def row_scales(ground: Ground) -> Figures:
    """A product with a scale for every row."""
    x, weight, scale = ground.int8(ROWS, COLUMNS), ground.int8(OUTPUTS, COLUMNS), scales(ground, OUTPUTS)
    rows = ground.float32(ROWS).abs() + 0.5

    def work(x: Any, weight: Any, scale: Any, rows: Any) -> Any:
        operator = ground.operator("npu", "npu_quant_matmul")
        weight = ground.calls.to_matmul(weight)
        return operator(x1=x, x2=weight, scale=scale, pertoken_scale=rows, output_dtype=ground.torch.float16)

    if ground.runtime.emulated:
        raise DeviceError("the emulated matmul has no scales of rows")
    expected = (ground.exact(x, weight).double() * scale.double() * rows.double()[:, None]).half()
    return near(ground.result(work, x, weight, scale, rows), expected, FLOAT16_BOUND)


class _Int8Keys:
    """One row of four sequences over INT8 keys in blocks, under scales of every channel."""

    def __init__(self, ground: Ground) -> None:
        heads, kv_heads, size, tokens, lengths = 8, 2, 128, ground.law.page_tokens, (1, 37, 128, 129)
        keys, values = (ground.int8(8, tokens, kv_heads * size) for _ in range(2))
        scale = ((ground.float32(2, kv_heads * size).abs() + 0.5) / 100).half()
        table = ground.int32(5, 0, 2, 7, 1, 3, 6, 4).view(4, 2)
        query = ground.float16(4, heads, size)
        self._ground = ground
        self._kv_heads = kv_heads
        self._lengths = lengths
        self.expected = emulated_ops.npu_incre_flash_attention(
            query.view(4, 1, heads * size), keys, values, actual_seq_lengths=lengths, antiquant_scale=scale, block_table=table,
            num_heads=heads, scale_value=size**-0.5, num_key_value_heads=kv_heads,
        ).view(query.shape)  # fmt: skip
        self._cards = ground.held(query, keys, values, table, scale)
        self.made: Any = None

    def run(self) -> None:
        query, keys, values, table, scale = self._cards
        self.made = self._ground.calls.attend_int8(query, keys, values, self._kv_heads, table, self._lengths, scale)

    def judged(self, found: Any) -> Figures:
        return near(found, self.expected, ATTENTION_BOUND)


def int8_keys(ground: Ground) -> Figures:
    """Attention over INT8 keys."""
    keys = _Int8Keys(ground)
    return keys.judged(ground.after(keys.run, lambda: keys.made)) | {"seconds": ground.seconds(keys.run)}


def int8_keys_captured(ground: Ground) -> Figures:
    """The same in a graph, whose lengths are those of the capture."""
    keys = _Int8Keys(ground)
    graph, _ = captured(ground, keys.run)
    made = keys.made
    return keys.judged(replayed(ground, graph, made)) | {"seconds": ground.seconds(graph.replay)}


def int8_keys_written(ground: Ground) -> Figures:
    """New keys quantized under scales of every channel and put into their slots."""
    cache, slots, rows = ground.int8(4, 128, 256), ground.int32(0, 130, 511), ground.float16(3, 256) * 3
    reciprocal = 1 / ((ground.float32(256).abs() + 0.5) / 20)

    def work(cache: Any, slots: Any, rows: Any, reciprocal: Any) -> Any:
        quantized = ground.calls.quantize(rows.to(ground.torch.float32), reciprocal)
        cache.view(-1, 256).index_copy_(0, slots.to(ground.torch.int64), quantized)
        return cache

    found = ground.result(work, cache, slots, rows, reciprocal)
    expected = cache.view(-1, 256).clone()
    expected[slots.long()] = (rows.float() * reciprocal).round().clamp(-128, 127).to(ground.torch.int8)
    return equal(found.view(-1, 256), expected)


def _pyacl() -> Any:
    """Raises `DeviceError` where it is not installed."""
    try:
        import acl  # type: ignore[import-not-found]
    except ImportError as error:
        raise DeviceError(f"there is no pyACL: {error}") from error
    return acl


def run_mode(ground: Ground) -> Figures:
    """Whether pyACL says that this code runs beside the card or, as on boards, on it: 1 or 0."""
    acl = _pyacl()
    mode, code = acl.rt.get_run_mode()
    figures: Figures = {"run_mode": int(mode), "board": is_own_host(Path("/"))}
    return figures | ({"error": f"acl.rt.get_run_mode returned {code}"} if code else {})


def s8gemm(ground: Ground) -> Figures:
    """Whether pyACL has the product with int32 results, and what a small one gives."""
    acl = _pyacl()
    product = getattr(getattr(acl, "blas", None), "s8gemm", None)
    if product is None:
        raise DeviceError("pyACL has no blas.s8gemm")
    rows, columns, outputs = 16, 64, 32
    x, weight = ground.int8(rows, columns), ground.int8(columns, outputs)
    one, none = ground.int32(1), ground.int32(0)
    a, b, alpha, beta = ground.held(x, weight, one, none)
    (c,) = ground.held(ground.torch.zeros((rows, outputs), dtype=ground.torch.int32))
    codes: list[int] = []

    def work() -> None:
        stream = ground.torch.npu.current_stream().npu_stream
        pointers = [tensor.data_ptr() for tensor in (alpha, a, b, beta, c)]
        codes.append(_multiply(product, (rows, outputs, columns), pointers, stream))

    ground.made(work)
    if codes[0]:
        raise DeviceError(f"acl.blas.s8gemm is there and returned {codes[0]} (its product has to be compiled by atc first)")
    return equal(ground.result(lambda: c), ground.exact(x, weight.T.contiguous()))


def _multiply(product: Any, sizes: tuple[int, int, int], pointers: list[int], stream: int) -> int:
    """C = alpha A B + beta C; nothing is transposed, leading dimensions are the matrices' own, sums are precise."""
    alpha, a, b, beta, c = pointers
    return int(product(0, 0, 0, *sizes, alpha, a, -1, b, -1, beta, c, -1, 0, stream))
