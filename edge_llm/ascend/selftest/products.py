"""Probes of INT8 products: the values of the matmul and of what prepares its operands, and how fast it is."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from edge_llm.ascend.npu.emulated_ops import FLOAT16_MAX, PACKED, SCALE_BITS
from edge_llm.ascend.selftest.ground import Figures, Ground, compared, equal, near, together

if TYPE_CHECKING:
    from torch import Tensor

ROWS = (1, 32, 256)
LAYER = ((896, 1152), (4864, 896))
"""(K, N) of two products of a layer at the shape of Qwen2.5-0.5B."""
VOCABULARY = 151936
SCALE_BOUND = 1e-3
"""Of the scales of rows."""
LARGE = (1024, 4096, 8192)
"""Rows, K and N of a product that is bound by multiplying."""


def rounded(sums: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """float16 of (int32 sums + int32 bias) * scale, saturated."""
    added = sums if bias is None else sums + bias
    return (added.float() * scale).clamp(-FLOAT16_MAX, FLOAT16_MAX).half()


def scales(ground: Ground, count: int) -> Tensor:
    """Of 19 bits, such that products are of the size of activations."""
    return first_bits(ground.float32(count).abs() * 1e-4 + 1e-5)


def first_bits(scale: Tensor) -> Tensor:
    """Positive float32 without what packing cuts off."""
    import torch

    return (scale.view(torch.int32).long() & SCALE_BITS).to(torch.int32).view(torch.float32)


def product(ground: Ground, rows: int, columns: int, outputs: int, bias: bool) -> Figures:
    """One product against the host."""
    x, weight, scale = ground.int8(rows, columns), ground.int8(outputs, columns), scales(ground, outputs)
    offset = ground.torch.randint(-100000, 100000, (outputs,), dtype=ground.torch.int32) if bias else None
    given = (x, weight, scale) + (() if offset is None else (offset,))

    def work(x: Any, weight: Any, scale: Any, offset: Any = None) -> Any:
        return ground.calls.quant_matmul(x, ground.calls.to_matmul(weight), ground.calls.pack_scale(scale), offset)

    return equal(ground.result(work, *given), rounded(ground.exact(x, weight), scale, offset))


def dynamic_quant(ground: Ground) -> Figures:
    """INT8 rows with a scale of each, its largest value / 127."""
    torch, (columns, _) = ground.torch, LAYER[1]
    x = ground.float16(ROWS[1], columns)
    quantized, scale = ground.result(ground.calls.quantize_rows, x)
    expected_scale = x.float().abs().amax(1) / 127
    figures = near(scale.float().view(-1), expected_scale, SCALE_BOUND)
    values = compared(quantized, (x.float() / expected_scale[:, None]).round().to(torch.int8))
    if values["largest_difference"] > 1:
        figures["error"] = f"values differ by up to {values['largest_difference']:.0f}"
    return figures | {"scales_differing": figures["differing"], "differing": values["differing"], "values": values["values"]}


def quant_matmul(ground: Ground) -> Figures:
    """The products of a layer, without and with an int32 bias."""
    rows = ROWS if not ground.runtime.emulated else ROWS[:2]
    return together(
        {
            f"[{count}, {columns}] @ [{columns}, {outputs}]{' + bias' if bias else ''}": product(
                ground, count, columns, outputs, bias
            )
            for columns, outputs in LAYER
            for count in rows
            for bias in (False, True)
        }
    )


def output_matrix(ground: Ground) -> Figures:
    """The product with the most outputs: a vocabulary."""
    outputs = ground.size(VOCABULARY, 2048)
    return together({f"[{rows}, 896] @ [896, {outputs}]": product(ground, rows, 896, outputs, False) for rows in (1, 32)})


def saturation(ground: Ground) -> Figures:
    """What becomes of products beyond the range of float16, and of sums whose bias is large."""
    torch = ground.torch
    x = torch.tensor([[127], [-127], [1]], dtype=torch.int8).expand(3, 64).contiguous()
    weight, scale = torch.full((32, 64), 127, dtype=torch.int8), torch.full((32,), 1.0)
    bias = torch.full((32,), 2**24 + 1, dtype=torch.int32)

    def work(x: Any, weight: Any, scale: Any, bias: Any) -> tuple[Any, Any]:
        weight, packed = ground.calls.to_matmul(weight), ground.calls.pack_scale(scale)
        small = ground.calls.pack_scale(scale * 2.0**-14)
        return ground.calls.quant_matmul(x, weight, packed, None), ground.calls.quant_matmul(x, weight, small, bias)

    plain, biased = ground.result(work, x, weight, scale, bias)
    sums = ground.exact(x, weight)
    cases = {
        "beyond float16": equal(plain, rounded(sums, scale, None)) | {"found": [str(float(one)) for one in plain[:, 0]]},
        "large bias": equal(biased, rounded(sums, scale * 2.0**-14, bias)),
    }
    return together(cases)


def packed_scale(ground: Ground) -> Figures:
    """The bits of packed scales: 19 bits of a float32, cut and not rounded, and bit 46."""
    torch = ground.torch
    edge = torch.tensor([0x3F800FFF, 0x3F801000, 0x3F801FFF, 0x3F802000, 0x00800000], dtype=torch.int32).view(torch.float32)
    scale = torch.cat((edge, ground.float32(1019).abs()))
    found = ground.result(lambda scale: ground.operator("npu", "npu_trans_quant_param")(scale=scale), scale)
    figures = compared(found, (scale.view(torch.int32).long() & SCALE_BITS) | PACKED)
    figures["first"] = [f"{int(value) & (2**64 - 1):#x}" for value in found[:5]]
    if figures["differing"]:
        figures["error"] = f"{figures['differing']} of {figures['values']} scales are packed otherwise"
    return figures


def quantize(ground: Ground) -> Figures:
    """Rounding of halves, saturation at both ends, and a reciprocal of 0 (hot channels)."""
    torch = ground.torch
    halves = torch.arange(-130.5, 131.0, 0.5)
    x = torch.cat((halves, torch.tensor([1e30, -1e30, -0.0]), ground.float32(2048) * 50))
    x = torch.nn.functional.pad(x, (0, -len(x) % 32))
    reciprocal = torch.ones(len(x))
    reciprocal[-32:] = 0.0
    expected = (x * reciprocal).round().clamp(-128, 127).to(torch.int8)  # round is to even
    found = ground.result(lambda x, reciprocal: ground.calls.quantize(x, reciprocal), x.view(1, -1), reciprocal).view(-1)
    figures = equal(found, expected) | {"smallest": int(found.min())}
    wrong = [f"{float(x[place])} to {int(found[place])}" for place in (found != expected).nonzero().view(-1)[:8]]
    return figures | ({"otherwise": wrong} if wrong else {})


def weight_formats(ground: Ground) -> Figures:
    """One product with its weight in fractals and in rows: the same bits, which is faster, and the way back."""
    columns, outputs, rows = ground.size(4096, 128), ground.size(4096, 128), ground.size(32, 4)
    x, weight, scale = ground.held(ground.int8(rows, columns), ground.int8(outputs, columns), scales(ground, outputs))
    quant_matmul = ground.operator("npu", "npu_quant_matmul")
    packed = ground.made(lambda: ground.calls.pack_scale(scale))
    fractals = ground.made(lambda: ground.calls.to_nz(weight))
    if ground.law.weights_are_nz:
        forms = {"fractals": fractals.transpose(0, 1), "rows": weight.transpose(0, 1)}
    else:
        turned = ground.made(lambda: weight.transpose(0, 1).contiguous())
        forms = {"fractals": ground.made(lambda: ground.calls.to_nz(turned)), "rows": turned}

    def multiply(form: Any) -> Any:
        return quant_matmul(x1=x, x2=form, scale=packed, output_dtype=ground.torch.float16)

    seconds = {f"{name}_seconds": ground.seconds(partial(multiply, form)) for name, form in forms.items()}
    found = [ground.result(partial(multiply, form)) for form in forms.values()]
    back = ground.result(lambda: ground.calls.to_nd(fractals))
    return together({"product": equal(*found), "way back": equal(back, ground.result(lambda: weight))}, **seconds)


def product_speed(ground: Ground) -> Figures:
    """Seconds of the products of a layer, operations per second of a large one, bytes per second of one row."""
    shapes = [(rows, *shape) for rows in ROWS for shape in LAYER]
    large = tuple(ground.size(full, 64) for full in LARGE)
    head = (1, 896, ground.size(VOCABULARY, 512))
    cases = {f"[{rows}, {k}] @ [{k}, {n}]": _speed(ground, rows, k, n) for rows, k, n in (*shapes, large, head)}
    of_large, of_head = list(cases.values())[-2:]
    return together(
        cases, operations_per_second=of_large["operations_per_second"], bytes_per_second=of_head["bytes_per_second"]
    )  # fmt: skip


def _speed(ground: Ground, rows: int, columns: int, outputs: int) -> Figures:
    x, weight, scale = ground.held(ground.int8(rows, columns), ground.int8(outputs, columns), scales(ground, outputs))
    weight, packed = ground.made(lambda: (ground.calls.to_matmul(weight), ground.calls.pack_scale(scale)))
    seconds = ground.seconds(lambda: ground.calls.quant_matmul(x, weight, packed, None))
    return {
        "seconds": seconds,
        "operations_per_second": 2.0 * rows * columns * outputs / seconds,
        "bytes_per_second": (columns * outputs + rows * columns + 2 * rows * outputs) / seconds,
    }


def float_product(ground: Ground) -> Figures:
    """The thin float16 product of hot channels: how near it is, and how long it takes."""
    rows, channels, outputs = ground.size(256, 8), 32, ground.size(4864, 64)
    x, weight = ground.float16(rows, channels), ground.float16(channels, outputs)
    expected = (x.double() @ weight.double()).half()
    figures = near(ground.result(lambda x, weight: x @ weight, x, weight), expected, 2e-3)
    left, right = ground.held(x, weight)
    large = [ground.size(full, 32) for full in LARGE]
    first, second = ground.held(ground.float16(large[0], large[1]), ground.float16(large[1], large[2]))
    operations = 2.0 * large[0] * large[1] * large[2]
    return figures | {
        "seconds": ground.seconds(lambda: left @ right),
        "operations_per_second": operations / ground.seconds(lambda: first @ second, 10),
    }


def many_rows(ground: Ground) -> Figures:
    """A product of 1,024 rows without a bias and with zeros, for which a 310P has a faster kernel; both have the same bits."""
    rows, columns, outputs = ground.size(1024, 64), ground.size(4096, 128), ground.size(4096, 128)
    x, weight, scale, none = ground.held(
        ground.int8(rows, columns), ground.int8(outputs, columns), scales(ground, outputs),
        ground.torch.zeros(outputs, dtype=ground.torch.int32),
    )  # fmt: skip
    weight, packed = ground.made(lambda: (ground.calls.to_matmul(weight), ground.calls.pack_scale(scale)))
    without = partial(ground.calls.quant_matmul, x, weight, packed, None)
    zeros = partial(ground.calls.quant_matmul, x, weight, packed, none)
    figures = equal(ground.result(zeros), ground.result(without))
    operations, seconds, with_zeros = 2.0 * rows * columns * outputs, ground.seconds(without, 10), ground.seconds(zeros, 10)
    return figures | {
        "seconds": seconds,
        "operations_per_second": operations / seconds,
        "zero_bias_seconds": with_zeros,
        "zero_bias_operations_per_second": operations / with_zeros,
    }


def float_fractals(ground: Ground) -> Figures:
    """float16 products, plain and with a sum, whose weight lies in fractals beside one in rows: near, and which is faster."""
    torch, rows, outputs = ground.torch, ground.size(32, 8), ground.size(1152, 64)
    cases = {}
    for columns in (32, ground.size(896, 64)):
        x, weight, added = ground.float16(rows, columns), ground.float16(columns, outputs), ground.float16(rows, outputs)
        expected = x.double() @ weight.double()
        cards = ground.held(x, weight, weight.T.contiguous(), added)
        forms = {"rows": cards[1], "fractals": ground.made(partial(ground.calls.to_nz, cards[1]))}
        turned = ground.made(partial(ground.calls.to_nz, cards[2]))
        forms["fractals, turned"] = turned.transpose(0, 1)
        for name, form in forms.items():
            mm, addmm = partial(torch.mm, cards[0], form), partial(torch.addmm, cards[3], cards[0], form)
            for call, work, wanted in (("mm", mm, expected), ("addmm", addmm, expected + added.double())):
                figures = near(ground.result(work), wanted.half(), 2e-3)
                cases[f"{call} of {columns}, {name}"] = figures | {"seconds": ground.seconds(work)}
    return together(cases)


def rows_of_products(ground: Ground) -> Figures:
    """Whether a row's product depends on how many rows are multiplied with it."""
    columns, outputs = 896, ground.size(1152, 64)
    most = ground.size(256, 16)
    x, weight, scale = ground.int8(most, columns), ground.int8(outputs, columns), scales(ground, outputs)
    floats, float_weight = ground.float16(most, columns), ground.float16(columns, outputs)

    def int8(x: Any, weight: Any, scale: Any) -> Any:
        return ground.calls.quant_matmul(x, ground.calls.to_matmul(weight), ground.calls.pack_scale(scale), None)

    return together(
        {
            "int8": alone_and_among(ground, int8, x, weight, scale),
            "float16": alone_and_among(ground, lambda x, weight: x @ weight, floats, float_weight),
        }
    )


def alone_and_among(ground: Ground, work: Any, x: Tensor, *more: Tensor) -> Figures:
    """The first rows of ``work`` for 1, 2, 8, 16 ... rows of ``x`` against those of all its rows."""
    among = ground.result(work, x, *more)
    found = [ground.result(work, x[:rows].contiguous(), *more) for rows in (1, 2, 8, 16, 32, 64) if rows < len(x)]
    differing = sum(compared(few, among[: len(few)])["differing"] for few in found)
    figures: Figures = {"values": sum(few.numel() for few in found), "differing": differing}
    return figures | ({"error": f"{differing} values depend on the number of rows"} if differing else {})

