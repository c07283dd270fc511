"""What is known of three Ascend chips, as data: ways to multiply, memory, speed, latencies; what operators take is in `law`.

Nothing here was seen on silicon by us.  Sources of the numbers, as tags in the comments and in the law:
[op] operator documentation of torch_npu 2.13 (op-plugin custom APIs); [src] sources of torch_npu and op-plugin; [whl] the wheel
of torch_npu; [vllm] what vllm-ascend does; [atb] documentation and sources of Ascend Transformer Boost; [acl] aclblasS8gemm in
the CANN 8.1 to 9.0 API reference; [geir] the graph operators GEMM and MatMulV2 in CANN's headers; [web] a third party's page;
[est] arithmetic from these; [recall] from memory; [assumed] our choice, to be measured on a card.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edge_llm.config import DEFAULT_CHUNK
from edge_llm.errors import UsageError

GIB = 2**30
INT8_COLUMNS = 32  # [op] an NZ fractal holds 32 int8 along K; [geir] GEMM: K aligned to 32 for int8
INT8_OUTPUTS = 16  # [op] and 16 along N
FRACTAL = 16  # [op] and 16 float16 either way
PRODUCTS = "products"
"""Linears that read gate * up, whose tokens differ the most."""
EVERY = "every"


@dataclass(frozen=True)
class MatmulRoute:
    """One way from int8 rows and int8 weights to float32 rows: which operator multiplies, and what comes out of it."""

    name: str
    operator: str
    """As the law names it."""
    output: str
    """int32: the accumulator itself, so the float32 product has the host's bits; float16: rounded by the chip."""
    launches: int
    """Operators that one product takes, the casts and scalings behind it included."""
    evidence: str
    scale: str = "float32"
    """The type in which it takes the scales: int64 is cut to 19 bits and packed."""
    needs_bias: bool = False
    """Whether it takes no product without a bias, so that zeros are added where a linear has none."""
    proven: bool = True
    """Whether others run it beside torch_npu on this chip."""

    @property
    def exact(self) -> bool:
        return self.output == "int32"


@dataclass(frozen=True)
class ChipLaw:
    """One chip: how it multiplies, how much it holds, how long it takes.

    Times are estimates for simulation and planning; a self-test on a card replaces them.
    """

    name: str
    soc: str
    """Name that the driver and the compiler know it by."""
    routes: tuple[MatmulRoute, ...]
    """Best first.  The first is taken unless another is asked for."""
    memory_sizes: tuple[int, ...]
    """Bytes of the variants that are sold; the first is emulated, and a card says itself what it has: `of_memory`."""
    free_share: float
    """Share of what the weights leave free that all other arrays may take; the rest is left to graphs and workspaces."""
    int8_rate: float
    """INT8 operations per second at the peak (a multiply-add is two)."""
    float16_rate: float
    rate_share: float
    """Share of either peak that a large product reaches."""
    bandwidth: float
    """Bytes per second of the card's memory at the peak."""
    bandwidth_share: float
    copy_rate: float
    """Bytes per second between host and card, one way."""
    copy_latency: float
    """Seconds of a copy of a few bytes."""
    captures: bool
    """Whether steps can be captured as graphs and replayed."""
    weights_are_nz: bool = True
    """Whether INT8 weights lie as fractals, of which the product takes the transposed view."""
    keys_are_nz: bool = True
    """Whether keys and values in blocks lie as fractals."""
    host_lengths: bool = False
    """Whether ATB's attention takes the lengths of keys from the host: a graph has those of its capture, until it is told."""
    saturates: bool = False
    """Whether what is too large becomes the largest number, and what is no number 0: neither shows in a result."""
    fractals_are_off: bool = False
    """Whether torch_npu leaves arrays as rows where it is told to make fractals, unless it is told that it may."""
    shares_memory: bool = False
    """Whether the host's memory is the card's as well, half for each."""
    placements: tuple[str, ...] = ("split", "split,host", "card")
    """What may run where, the default first: names of `edge_llm.subgraphs.placement.PLACEMENTS`."""
    row_scaled: str = ""
    """Linears whose rows have a scale each where the bundle has those: `PRODUCTS`, `EVERY`, or none; others have one."""
    multiplies_rows: bool = False
    """Whether products take the scales of rows; else one operator more multiplies the rows of the result."""
    zero_bias: bool = False
    """Whether a product without a bias is given zeros: the fast kernel wants one."""
    fast_rows: int = 1
    """Rows from which products reach `rate_share` of the peak; with fewer, `slow_share`."""
    slow_share: float = 1.0
    """Of `rate_share`."""
    chunk: int = 256
    """Longest chunk of a prompt on a card, where nothing else is asked for."""
    page_tokens: int = 128  # [atb] recommended, and the most that attention over pieces of prompts takes
    launch_seconds: float = 15e-6  # [recall] host dispatch of 10 to 20 us an operator
    wait_seconds: float = 20e-6  # [assumed] from the end of the card's work to the host's next
    replay_seconds: float = 100e-6  # [est] one replay takes 70 to 170 us beside its work
    capture_seconds: float = 0.5  # [assumed] of each graph, once
    row_tile: int = 16  # [op] the cube multiplies 16 x 32 x 16; other row counts are filled up inside, at full cost
    allocation_multiple: int = 512  # [src] the allocator rounds up to 512 bytes ...
    allocation_pad: int = 32  # [src] ... after adding 32
    measured: str = ""
    """When a self-test measured its times; empty: they are estimates."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory, of those that are shared with the host half."""
        return self.memory_sizes[0] // (2 if self.shares_memory else 1)

    def of_memory(self, total: int) -> ChipLaw:
        """The law of a card that has ``total`` bytes, as `torch.npu.mem_get_info` says."""
        return replace(self, memory_sizes=(total,))

    def ceiling(self, weights: int = 0) -> int:
        """Bytes that all arrays may take, ``weights`` bytes of weights among them."""
        return weights + int((self.memory_bytes - weights) * self.free_share)

    def route(self, name: str | None = None) -> MatmulRoute:
        """The route called ``name``, or the best one.  Raises `UsageError` if the chip has none of that name."""
        if name is None:
            return self.routes[0]
        for route in self.routes:
            if route.name == name:
                return route
        known = ", ".join(route.name for route in self.routes)
        raise UsageError(f"{self.soc} has no matmul route `{name}`; it has: {known}", param="device")

    def padded(self, columns: int, outputs: int) -> tuple[int, int]:
        """K and N filled up with zeros to what the chip takes."""
        return _round_up(columns, INT8_COLUMNS), _round_up(outputs, INT8_OUTPUTS)

    def cache_shape(self, blocks: int, kv_heads: int, head_dim: int) -> tuple[int, ...]:
        """Of float16 keys, or values, of a layer in ``blocks`` blocks; [blocks, KV * D / 16, tokens, 16] where they are NZ."""
        if self.keys_are_nz:
            return blocks, max(1, kv_heads * head_dim // FRACTAL), self.page_tokens, FRACTAL
        return blocks, self.page_tokens, kv_heads, head_dim

    def allocation(self, nbytes: int) -> int:
        """Bytes that the allocator takes for an array of ``nbytes`` bytes."""
        return _round_up(nbytes + self.allocation_pad, self.allocation_multiple)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


# Behind an int32 accumulator: Cast to float32, Mul by the scales, and Add of the bias where there is one, all in float32.
_INT32 = MatmulRoute(
    "int32",
    operator="npu_quant_matmul",
    output="int32",
    launches=3,
    evidence="[op] the form is documented; [assumed] Cast rounds half to even, Mul and Add are not fused",
)
# The cube accumulates int8 products in int32 on every chip; aclblasS8gemm hands that accumulator out (int8, int8 -> int32), and
# is documented for 310P and 310B up to CANN 9.0, no longer in the newest text; pyACL has it as acl.blas.s8gemm, torch_npu does
# not have it at all.  A call is one single-operator graph of fixed m, n, k (GEMM, compiled by ATC), which is what a static
# subgraph is.  The other exact way on a 310P, float16 sums that stay below 2048, needs four-bit halves of both sides and slices
# of 32 columns: 4 * K / 32 launches, 112 of them for K = 896.
_S8GEMM = MatmulRoute(
    "s8gemm",
    operator="aclblasS8gemm",
    output="int32",
    launches=3,
    evidence="[acl] int8 in, int32 out on this chip; [assumed] runs beside torch_npu on its pointers, at the rate of "
    "npu_quant_matmul; Cast rounds half to even, Mul and Add are not fused",
    proven=False,
)
_FLOAT16 = MatmulRoute(
    "float16",
    operator="npu_quant_matmul",
    output="float16",
    launches=1,
    evidence="[op] scale cut to a 19-bit float, int32 bias, float16 out; [assumed] overflow saturates at 65504",
)
_ATB_FLOAT16 = replace(
    _FLOAT16,
    operator="LinearOperation",
    scale="int64",
    evidence="[web] mllm runs it on this chip, int32 bias and float16 out; [assumed] scale packed, overflow saturates at 65504",
    needs_bias=True,
)

CHIPS = {
    "310p": ChipLaw(
        name="310p",
        soc="Ascend310P3",
        routes=(replace(_FLOAT16, scale="int64"), _S8GEMM),
        memory_sizes=(24 * GIB, 48 * GIB),  # [web] one die of a 300I Duo with 48 or 96 GB; it appears as two devices
        free_share=0.5,  # [vllm] keeps half of what the weights leave for workspaces
        int8_rate=140e12,  # [web] a Duo has 280
        float16_rate=70e12,  # [recall]
        rate_share=0.5,  # [assumed] 40 to 60 percent
        bandwidth=204e9,  # [web] LPDDR4X
        bandwidth_share=0.6,  # [assumed] 50 to 65 percent
        copy_rate=10e9,  # [assumed] half of a PCIe 4.0 x16 link, which the two dies share
        copy_latency=20e-6,  # [assumed]
        captures=True,  # [src]
        saturates=True,  # [src] torch_npu chooses the mode where the chip has no Inf and NaN
        row_scaled=EVERY,  # [measured] one scale for all rows of qkv, o and gate_up more than doubles the divergence
        zero_bias=True,  # [src] quant_batch_matmul_v3: PpMatmul is taken for M >= 1024, a bias and a transposed weight
        fast_rows=1024,  # [src]
        slow_share=0.5,  # [assumed] of the kernel that is taken for fewer rows
        chunk=1024,
    ),
    "310b": ChipLaw(
        name="310b",
        soc="Ascend310B4",
        routes=(_ATB_FLOAT16, _S8GEMM),  # [op] npu_quant_matmul is not for this chip
        memory_sizes=(8 * GIB, 12 * GIB, 16 * GIB, 20 * GIB, 24 * GIB),  # [web] boards have 8 to 24
        free_share=1.0,  # [assumed] of the card's half
        int8_rate=8e12,  # [web] the 8 TOPS board
        float16_rate=4e12,  # [est] half of that, as of the 20 TOPS board [web]
        rate_share=0.5,  # [assumed]
        bandwidth=34e9,  # [recall] LPDDR4X, 34 to 51 GB/s
        bandwidth_share=0.6,  # [assumed]
        copy_rate=10e9,  # [assumed] a copy inside the same memory: read and write share its bandwidth
        copy_latency=20e-6,  # [assumed] the call, whatever lies behind it
        captures=False,  # [src]
        shares_memory=True,
        saturates=True,  # [src]
        launch_seconds=30e-6,  # [assumed] the cores of a board take twice as long
    ),
    "910b": ChipLaw(
        name="910b",
        soc="Ascend910B1",
        routes=(_INT32, _FLOAT16),  # a float32 scale is packed inside the call, and lifts the limit of N [op]
        memory_sizes=(64 * GIB, 32 * GIB),  # [recall] B1 to B3; a B4
        free_share=0.9,  # [assumed]
        int8_rate=640e12,  # [recall]; 727 is 24 cores x 1.85 GHz x 16 x 32 x 16 x 2 [web]
        float16_rate=320e12,  # [est] half of that; 313 of a B3 [recall], 364 of a B1 at its peak [web]
        rate_share=0.5,  # [assumed]
        bandwidth=1.6e12,  # [recall]
        bandwidth_share=0.6,  # [assumed]
        copy_rate=20e9,  # [recall] PCIe 4 or 5 x16, 20 to 25 GB/s
        copy_latency=15e-6,  # [assumed]
        captures=True,  # [src]
        weights_are_nz=False,
        keys_are_nz=False,
        host_lengths=True,  # [atb] it binds contextLens.hostData but on a 310P
        fractals_are_off=True,  # [src]
        row_scaled=EVERY,  # [op] npu_dynamic_quant ...
        multiplies_rows=True,  # [op] ... and a product with pertoken_scale
        chunk=1024,  # [assumed]
    ),
}


def scales_rows(law: ChipLaw, *, behind_swiglu: bool) -> bool:
    """Whether rows of a linear have a scale each on the chip, where the bundle has those."""
    return law.row_scaled == EVERY or (law.row_scaled == PRODUCTS and behind_swiglu)


DEFAULT_CHIP = "310p"


def longest_chunk(device: str) -> int:
    """Tokens of a chunk on ``device`` where nobody asks for a number; of `ascend` before it is known which chip it is."""
    kind, _, chip = device.partition(":")
    return CHIPS.get(chip.lower(), CHIPS[DEFAULT_CHIP]).chunk if kind == "ascend" else DEFAULT_CHUNK


def chip_law(name: str) -> ChipLaw:
    """The law of the chip called ``name`` (310p, 310b or 910b, in either case).  Raises `UsageError` for any other."""
    law = CHIPS.get(name.lower())
    if law is None:
        raise UsageError(f"no chip `{name}`; there are: {', '.join(CHIPS)}", param="device")
    return law
