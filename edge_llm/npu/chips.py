"""What three Ascend chips allow, as data: forms of the quantized matmul, alignment, sizes, memory, speed.

Nothing here was seen on silicon by us.  Sources of the numbers, as tags in the comments:
[op] operator documentation of torch_npu 2.13 (op-plugin custom APIs); [src] torch_npu sources; [vllm] what vllm-ascend does;
[acl] aclblasS8gemm in the CANN 8.1 to 9.1 API reference; [geir] the graph operators GEMM and MatMulV2 in CANN's headers;
[web] a third party's page; [recall] from memory; [assumed] our choice, to be measured on a card.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_llm.errors import DeviceError

GIB = 2**30
DtypeName = str | None
"""NumPy name of an operand's type; None where the operand is absent."""


@dataclass(frozen=True)
class MatmulForm:
    """One row of the documentation's table: which operand types `npu_quant_matmul` takes together (x1 and x2 are int8)."""

    output: str
    scale: tuple[DtypeName, ...]
    bias: tuple[DtypeName, ...] = ("int32", None)
    offset: tuple[DtypeName, ...] = (None,)
    row_scale: tuple[DtypeName, ...] = (None,)


@dataclass(frozen=True)
class MatmulRoute:
    """One way from int8 rows and int8 weights to float32 rows: which call multiplies, and what comes out of it."""

    name: str
    call: str
    output: str
    """int32: the accumulator itself, so the float32 product has the host's bits; float16: rounded by the chip."""
    launches: int
    """Operators that one product takes, the casts and scalings behind the call included."""
    evidence: str

    @property
    def exact(self) -> bool:
        return self.output == "int32"


@dataclass(frozen=True)
class ChipLaw:
    """One chip: what it refuses, how much it holds, how long it takes."""

    name: str
    soc: str
    """Name that the driver and the compiler know it by."""
    forms: tuple[MatmulForm, ...]
    """Forms of `npu_quant_matmul`; empty where the chip has no such operator."""
    routes: tuple[MatmulRoute, ...]
    """Best first.  The first is taken unless another is asked for."""
    memory_bytes: int
    usable_share: float
    """Share of the memory that arrays may take; the rest is left to graphs and workspaces."""
    int8_rate: float
    """INT8 operations per second at the peak (a multiply-add is two)."""
    rate_share: float
    """Share of the peak that a large product reaches."""
    bandwidth: float
    """Bytes per second of the card's memory at the peak."""
    bandwidth_share: float
    copy_rate: float
    """Bytes per second between host and card, one way."""
    placements: tuple[str, ...] = ("split", "split,host", "card")
    """What may run where, the default first: names of `edge_llm.subgraphs.placement.PLACEMENTS`."""
    page_tokens: int = 128  # [op] paged attention: blocks of a multiple of 32 or 128 tokens
    launch_seconds: float = 15e-6  # [recall] host dispatch of 10 to 20 us an operator
    max_last_dim: int = 65535  # [op] last dims of x1 and x2
    column_multiple: int = 32  # [op] an NZ fractal holds 32 int8 along K; [geir] GEMM: K aligned to 32 for int8
    output_multiple: int = 16  # [op] and 16 along N
    row_tile: int = 16  # [op] the cube multiplies 16 x 32 x 16; other row counts are filled up inside, at full cost
    allocation_multiple: int = 512  # [src] the allocator rounds up to 512 bytes ...
    allocation_pad: int = 32  # [src] ... after adding 32

    @property
    def ceiling(self) -> int:
        """Bytes that arrays may take."""
        return int(self.memory_bytes * self.usable_share)

    def route(self, name: str | None = None) -> MatmulRoute:
        """The route called ``name``, or the best one.  Raises `DeviceError` if the chip has none of that name."""
        if name is None:
            return self.routes[0]
        for route in self.routes:
            if route.name == name:
                return route
        known = ", ".join(route.name for route in self.routes)
        raise DeviceError(f"{self.soc} has no matmul route `{name}`; it has: {known}")

    def check_form(
        self,
        output: str,
        scale: DtypeName,
        bias: DtypeName = None,
        offset: DtypeName = None,
        row_scale: DtypeName = None,
    ) -> None:
        """Refuse a combination of operand types that `npu_quant_matmul` does not take on this chip."""
        given = (scale, bias, offset, row_scale)
        for form in self.forms:
            allowed = (form.scale, form.bias, form.offset, form.row_scale)
            if form.output == output and all(one in many for one, many in zip(given, allowed, strict=True)):
                return
        outputs = ", ".join(sorted({form.output for form in self.forms})) or "nothing: the operator is not there"
        raise DeviceError(
            f"{self.soc} refuses npu_quant_matmul with scale `{scale}`, bias `{bias}`, offset `{offset}`, "
            f"per-row scale `{row_scale}` and output `{output}`; it can return {outputs}"
        )

    def check_product(self, rows: int, columns: int, outputs: int) -> None:
        """Refuse an int8 product x1 [rows, columns] @ x2 [columns, outputs] whose sizes the chip cannot take."""
        shape = f"[{rows}, {columns}] @ [{columns}, {outputs}]"
        if min(rows, columns, outputs) < 1:
            raise DeviceError(f"{self.soc} refuses the product {shape}: an empty side")
        if columns % self.column_multiple:
            raise DeviceError(f"{self.soc} refuses the product {shape}: K `{columns}` is no multiple of {self.column_multiple}")
        if outputs % self.output_multiple:
            raise DeviceError(f"{self.soc} refuses the product {shape}: N `{outputs}` is no multiple of {self.output_multiple}")
        longest = max(columns, outputs)
        if longest > self.max_last_dim:
            raise DeviceError(f"{self.soc} refuses the product {shape}: `{longest}` is more than {self.max_last_dim}")

    def padded(self, columns: int, outputs: int) -> tuple[int, int]:
        """K and N filled up with zeros to what the chip takes."""
        return _round_up(columns, self.column_multiple), _round_up(outputs, self.output_multiple)

    def allocation(self, nbytes: int) -> int:
        """Bytes that the allocator takes for an array of ``nbytes`` bytes."""
        return _round_up(nbytes + self.allocation_pad, self.allocation_multiple)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


# Forms, row by row as in [op].  int64 is a float32 scale cut to 19 bits and packed by npu_trans_quant_param.
_FLOAT16_FORM = MatmulForm("float16", scale=("int64", "float32"))
_INT8_FORM = MatmulForm("int8", scale=("int64", "float32"), offset=("float32", None))
_FORMS_310P = (_FLOAT16_FORM, _INT8_FORM)  # no per-row scale, no float32, no bfloat16
_FORMS_910B = (
    _FLOAT16_FORM,
    _INT8_FORM,
    MatmulForm(
        "bfloat16",
        scale=("float32", "bfloat16"),
        bias=("int32", "bfloat16", "float32", None),
        row_scale=("float32", None),
    ),
    MatmulForm("float16", scale=("float32",), bias=("int32", "bfloat16", "float32", None), row_scale=("float32",)),
    MatmulForm("int32", scale=("float32", "bfloat16")),
)

# Behind an int32 accumulator: Cast to float32, Mul by the scales, and Add of the bias where there is one, all in float32.
_INT32 = MatmulRoute(
    "int32",
    call="npu_quant_matmul(output_dtype=int32)",
    output="int32",
    launches=3,
    evidence="[op] the form is documented; [assumed] Cast rounds half to even, Mul and Add are not fused",
)
# The cube accumulates int8 products in int32 on every chip; aclblasS8gemm hands that accumulator out (int8, int8 -> int32), and
# is documented for 310P and 310B; pyACL has it as acl.blas.s8gemm.  A call is one single-operator graph of fixed m, n, k (GEMM,
# compiled by ATC), which is what a static subgraph is.  The other exact way on a 310P, float16 sums that stay below 2048, needs
# four-bit halves of both sides and slices of 32 columns: 4 * K / 32 launches, 112 of them for K = 896.
_S8GEMM = MatmulRoute(
    "s8gemm",
    call="aclblasS8gemm",
    output="int32",
    launches=3,
    evidence="[acl] int8 in, int32 out on this chip; [assumed] runs beside torch_npu on its pointers, at the rate of "
    "npu_quant_matmul; Cast rounds half to even, Mul and Add are not fused",
)
_FLOAT16 = MatmulRoute(
    "float16",
    call="npu_quant_matmul(output_dtype=float16)",
    output="float16",
    launches=1,
    evidence="[op] scale cut to a 19-bit float, int32 bias, float16 out; [assumed] overflow saturates at 65504",
)

CHIPS = {
    "310p": ChipLaw(
        name="310p",
        soc="Ascend310P3",
        forms=_FORMS_310P,
        routes=(_S8GEMM, _FLOAT16),
        memory_bytes=24 * GIB,  # [web] one die of a 300I Duo with 48 GB; it appears as two devices
        usable_share=0.5,  # [vllm] keeps half of the free memory for workspaces
        int8_rate=140e12,  # [web] a Duo has 280
        rate_share=0.5,  # [assumed] 40 to 60 percent
        bandwidth=204e9,  # [web] LPDDR4X
        bandwidth_share=0.6,  # [assumed] 50 to 65 percent
        copy_rate=10e9,  # [assumed] half of a PCIe 4.0 x16 link, which the two dies share
    ),
    "310b": ChipLaw(
        name="310b",
        soc="Ascend310B4",
        forms=(),  # [op] QuantBatchMatmulV3 is marked as not for this chip, and torch_npu 2.13 does not list it
        routes=(_S8GEMM,),
        memory_bytes=8 * GIB,  # [web] smallest board; shared with the CPU
        usable_share=0.5,  # [assumed] the other half is the CPU's
        int8_rate=8e12,  # [web] the 8 TOPS board
        rate_share=0.5,  # [assumed]
        bandwidth=34e9,  # [recall] LPDDR4X, 34 to 51 GB/s
        bandwidth_share=0.6,  # [assumed]
        copy_rate=10e9,  # [assumed] a copy inside the same memory: read and write share its bandwidth
    ),
    "910b": ChipLaw(
        name="910b",
        soc="Ascend910B1",
        forms=_FORMS_910B,
        routes=(_INT32, _FLOAT16),
        memory_bytes=64 * GIB,  # [recall] B1 to B3; a B4 has 32
        usable_share=0.9,  # [assumed]
        int8_rate=640e12,  # [recall]; 727 is 24 cores x 1.85 GHz x 16 x 32 x 16 x 2 [web]
        rate_share=0.5,  # [assumed]
        bandwidth=1.6e12,  # [recall]
        bandwidth_share=0.6,  # [assumed]
        copy_rate=20e9,  # [recall] PCIe 4 or 5 x16, 20 to 25 GB/s
    ),
}


def chip_law(name: str) -> ChipLaw:
    """The law of the chip called ``name`` (310p, 310b or 910b, in either case).  Raises `DeviceError` for any other."""
    law = CHIPS.get(name.lower())
    if law is None:
        raise DeviceError(f"no chip `{name}` to emulate; there are: {', '.join(CHIPS)}")
    return law
