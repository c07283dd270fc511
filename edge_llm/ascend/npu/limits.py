"""What products, quantization, norms and elementwise operators take on each chip; attention is in `attention_limits`.

Only what this project calls is here, and only forms that it may want: a product that takes six dimensions is said to take two.
Tags of sources are those of `edge_llm.ascend.npu.chips`.
"""

from __future__ import annotations

from dataclasses import replace

from edge_llm.ascend.npu.chips import FRACTAL, INT8_COLUMNS, INT8_OUTPUTS
from edge_llm.ascend.npu.rules import NO_DEFAULT, Form, Layout, Limit, Operator, shapes, types

INT8_SIDES = {"k": Limit("op geir", multiple=INT8_COLUMNS, most=65535), "n": Limit("op", multiple=INT8_OUTPUTS)}
"""K is the last dimension of the rows; N only where the weight is not an (n, k) that is handed over transposed."""
MOST_PACKED = 65535
"""N of products whose scales are packed, where the weight's last dimension is N."""
LAST_N = {"n": Limit("op", multiple=INT8_OUTPUTS, most=MOST_PACKED)}

_PRODUCT = shapes(x1="m k", x2="k n", scale="n|1", offset="n|1", bias="n", pertoken_scale="m")
# int64 is a float32 scale cut to 19 bits and packed by npu_trans_quant_param.  Four-bit operands, which a 910B takes eight to
# an int32, are in no row: nothing here makes them.
_FLOAT16_OUT = types(x1="int8", x2="int8", scale="int64|float32", bias="int32|-", output_dtype="float16")
_INT8_OUT = types(x1="int8", x2="int8", scale="int64|float32", bias="int32|-", offset="float32|-", output_dtype="int8|-")
QUANT_MATMUL_310P = Operator(
    "npu",
    forms=(Form("op", _FLOAT16_OUT), Form("op", _INT8_OUT)),  # no per-row scale, no float32, no bfloat16
    layouts=(
        Layout(_PRODUCT, nz={"x2": True}),  # [op] it must be transposed before it becomes NZ, so its last dimension is K
        Layout(_PRODUCT, limits=LAST_N),
    ),
    settings={"output_dtype": None},
    limits=INT8_SIDES,
)
_FLOAT_SCALE = {"scale": ("float32",)}  # [op] lifts the limit of N, as a bfloat16 scale does
_PACKED = {"scale": ("int64",)}
QUANT_MATMUL_910B = Operator(
    "npu",
    forms=(
        Form("op", _FLOAT16_OUT | _PACKED, LAST_N),
        Form("op", _FLOAT16_OUT | _FLOAT_SCALE),
        Form("op", _INT8_OUT | _PACKED, LAST_N),
        Form("op", _INT8_OUT | _FLOAT_SCALE),
        Form("op", types(
            x1="int8", x2="int8", scale="float32|bfloat16", bias="int32|bfloat16|float32|-", pertoken_scale="float32|-",
            output_dtype="bfloat16",
        )),
        Form("op", types(
            x1="int8", x2="int8", scale="float32", bias="int32|bfloat16|float32|-", pertoken_scale="float32",
            output_dtype="float16",
        )),
        Form("op", types(x1="int8", x2="int8", scale="float32|bfloat16", bias="int32|-", output_dtype="int32")),
    ),
    layouts=(Layout(_PRODUCT, nz={"x2": None}),),
    settings={"output_dtype": None},
    limits=INT8_SIDES,
)  # fmt: skip
S8GEMM = Operator(
    "acl",
    forms=(Form("acl", types(matrixA="int8", matrixB="int8", matrixC="int32")),),
    layouts=(Layout(shapes(matrixA="m k", matrixB="k n", matrixC="m n"), nz={"matrixB": None}),),
    limits={"k": Limit("geir", multiple=INT8_COLUMNS), "n": Limit("geir", multiple=INT8_OUTPUTS)},
)
ATB_LINEAR_310B = Operator(
    "atb C++",
    forms=(Form("web", types(x="int8", weight="int8", bias="int32", deqScale="int64", outDataType="float16")),),
    layouts=(Layout(shapes(x="m k", weight="k n", bias="n", deqScale="n"), nz={"weight": None}),),
    settings={"outDataType": NO_DEFAULT},
    limits={"k": Limit("atb", multiple=INT8_COLUMNS), "n": Limit("atb", multiple=INT8_OUTPUTS)},
)
TRANS_QUANT_PARAM = Operator(
    "npu",
    forms=(Form("op", types(scale="float32", offset="float32|-")),),
    layouts=(Layout(shapes(scale="n|1 n", offset="n|1 n|1")),),
    settings={"round_mode": 0},
    limits={"round_mode": Limit("assumed", among=(0,))},
)


def _quantize(*floats: str) -> Operator:
    multiplied = (
        Form("op", types(input=one, scales=one, zero_points=f"{one}|-", dtype="qint8|int8", div_mode=(False,)))
        for one in floats
    )
    divided = types(
        input="|".join(floats), scales="float32", zero_points="int8|uint8|int32|-", dtype="qint8|quint8|int32", div_mode=(True,)
    )
    return Operator(
        "npu",
        forms=(*multiplied, Form("op", divided)),
        layouts=(Layout(shapes(input="m k", scales="k|1", zero_points="k|1")),),
        settings={"dtype": NO_DEFAULT, "axis": 1, "div_mode": True},
        limits={"axis": Limit("op", among=(-1, 1))},  # the last axis of two; -2 is not on a 310P
    )


QUANTIZE_310P = _quantize("float32", "float16")
QUANTIZE_910B = _quantize("float32", "float16", "bfloat16")
# The page of torch_npu leaves the 310P out; [op] those of aclnnDynamicQuantV2, which it calls, have it since CANN 8.2, and
# [vllm] vllm-ascend calls it there.
DYNAMIC_QUANT_310P = Operator(
    "npu",
    forms=(Form("op", types(input="float16", dst_type="int8|-")),),
    layouts=(Layout(shapes(input="m k")),),
    settings={"dst_type": None, "quant_mode": "pertoken"},
    limits={"quant_mode": Limit("op", among=("pertoken",)), "k": Limit("op", multiple=INT8_COLUMNS)},
)
DYNAMIC_QUANT_910B = Operator(
    "npu",
    forms=tuple(
        Form("op", types(input=one, smooth_scales=f"{one}|-", dst_type="int8|-")) for one in ("float16", "bfloat16")
    ),
    layouts=(Layout(shapes(input="m k", smooth_scales="k")),),
    settings={"dst_type": None, "quant_mode": "pertoken"},
    limits={"quant_mode": Limit("op", among=("pertoken",))},
)
ND, NZ = 2, 29
"""Numbers of the storage formats: rows one after the other, and fractals of 16 x 16 (INT8: 16 x 32) values."""
FORMAT_CAST = Operator(
    "npu",
    forms=(
        Form("vllm", types(input="int8|float16", acl_format=(NZ,))),  # a float32 stays as it is, and nothing here is bfloat16
        Form("op", types(input="int8|float16|float32|int32", acl_format=(ND,))),
    ),
    layouts=(
        Layout(
            shapes(input="... height width"),
            when={"acl_format": (NZ,)},
            nz={"input": None},
            limits={"height": Limit("op", least=2), "width": Limit("op", least=2)},
        ),
        Layout(shapes(input="..."), when={"acl_format": (ND,)}, nz={"input": None}),
    ),
    settings={"acl_format": NO_DEFAULT},
    limits={"acl_format": Limit("whl", among=(ND, NZ))},
)


def _rms_norm(*forms: Form) -> Operator:
    return Operator(
        "npu",
        forms,
        layouts=(Layout(shapes(input="... width", gamma="width")),),
        settings={"epsilon": 1e-6},
        limits={"epsilon": Limit("op", least=0)},
    )


RMS_NORM_310P = _rms_norm(  # [op] the last axis has 32 bytes at least
    Form("op", types(input="float16", gamma="float16"), {"width": Limit("op", least=16)}),
    Form("op", types(input="float32", gamma="float32"), {"width": Limit("op", least=8)}),
)
RMS_NORM_910B = _rms_norm(
    Form("op", types(input="float16", gamma="float16|float32")),
    Form("op", types(input="bfloat16", gamma="bfloat16|float32")),
    Form("op", types(input="float32", gamma="float32")),
)


def _add_rms_norm(*forms: Form) -> Operator:
    return Operator(
        "npu",
        forms,
        layouts=(Layout(shapes(x1="m width", x2="m width", gamma="width")),),
        settings={"epsilon": 1e-6},
        limits={"epsilon": Limit("op", least=0)},
    )


# [op] types and last axis are those of the norm; on a 310P the reciprocal root that it also gives is not valid.
ADD_RMS_NORM_310P = _add_rms_norm(
    Form("op", types(x1="float16", x2="float16", gamma="float16"), {"width": Limit("op", least=16)}),
    Form("op", types(x1="float32", x2="float32", gamma="float32"), {"width": Limit("op", least=8)}),
)
ADD_RMS_NORM_910B = _add_rms_norm(*(Form("op", types(x1=one, x2=one, gamma=one)) for one in ("float16", "bfloat16", "float32")))


def _swiglu(source: str, floats: str) -> Operator:
    return Operator(
        "npu",
        forms=(Form(source, types(input=floats)),),
        layouts=(Layout(shapes(input="... gate_and_up")),),
        settings={"dim": -1},
        limits={"dim": Limit("assumed", among=(-1,)), "gate_and_up": Limit("op", multiple=2)},
    )


SWIGLU_310P = replace(  # [op] "not for shapes that are not aligned to 64 bytes": either half begins at such a place
    _swiglu("op", "float16|float32"),
    limits={"dim": Limit("assumed", among=(-1,)), "gate_and_up": Limit("op", multiple=64)},
)
SWIGLU_910B = _swiglu("op", "float16|bfloat16|float32")


_MM_NZ = {"k": Limit("src", multiple=FRACTAL), "n": Limit("src", multiple=FRACTAL)}


def _mm(floats: tuple[str, ...]) -> Operator:
    return Operator(
        "aten",
        forms=tuple(Form("src", types(self=one, mat2=one)) for one in floats),
        layouts=(
            Layout(shapes(self="m k", mat2="k n")),
            Layout(shapes(self="m k", mat2="k n"), nz={"mat2": True}, limits=_MM_NZ),
        ),
    )


def _addmm(floats: tuple[str, ...]) -> Operator:
    return Operator(
        "aten",
        forms=tuple(Form("src", types(self=one, mat1=one, mat2=one)) for one in floats),
        layouts=(Layout(shapes(self="m n", mat1="m k", mat2="k n"), nz={"mat2": None}),),
        settings={"beta": 1, "alpha": 1},
    )


_CAT = Operator(  # of a list of tensors, which torch checks itself
    "aten", forms=(Form("src", types(tensors="-")),), layouts=(Layout(shapes(tensors="")),), settings={"dim": 0}
)


def _elementwise(known: str, second: str = "", **settings: object) -> Operator:
    """Any shape: torch itself says which ones go together.  A number in the place of the ``second`` tensor has no limits."""
    optional = dict.fromkeys(filter(None, (second, "dtype" if "dtype" in settings else "")), f"{known}|-")
    tensors = {"self": "", second: ""} if second else {"self": ""}
    return Operator(
        "aten",
        forms=(Form("src", types(self=known, **optional)),),
        layouts=(Layout(shapes(**tensors), nz=dict.fromkeys(tensors)),),
        settings=settings,
    )


def _index_select(known: str) -> Operator:
    return Operator(
        "aten",
        forms=(Form("src", types(self=known, index="int32|int64")),),
        layouts=(Layout(shapes(self="", index="rows")),),
        settings={"dim": NO_DEFAULT},
    )


def _index_copy(known: str) -> Operator:
    return Operator(
        "aten",
        forms=(Form("op", types(self=known, index="int64", source=known)),),
        layouts=(Layout(shapes(self="", index="rows", source="")),),
        settings={"dim": NO_DEFAULT},
    )


def _aten(known: str, floats: tuple[str, ...]) -> dict[str, Operator]:
    return {
        "mm": _mm(floats),
        "addmm": _addmm(floats),
        "add": _elementwise(known, "other", alpha=1),
        "neg": _elementwise(known),
        "cat": _CAT,
        "mul": _elementwise(known, "other"),
        "gt": _elementwise(known, "other"),
        "abs": _elementwise(known),
        "amax": _elementwise(known, dim=(), keepdim=False),
        # [op] aclnnDiv's page leaves the 310P out, its operator RealDiv's has it; [vllm] samplers divide there
        "div": _elementwise(known, "other", rounding_mode=None),
        "split_with_sizes_copy": _elementwise(known, split_sizes=NO_DEFAULT, dim=0),
        "sum": _elementwise(known, dim=None, keepdim=False, dtype=None),
        "max": _elementwise(known),
        "copy_": _elementwise(known, "src", non_blocking=False),
        "to": _elementwise(known, "other", dtype=None, non_blocking=False, copy=False),
        "contiguous": _elementwise(known),
        "view": _elementwise(known, size=None),
        "index_select": _index_select(known),
    }


_INTEGERS = "bool|uint8|int8|int16|int32|int64"
# [src] float64 becomes float32 with a warning, so it is in no list; a 310P has no bfloat16, and multiplies in float16.
ATEN_310P = _aten(f"float16|float32|{_INTEGERS}", ("float16",))
_KNOWN_910B = f"float16|bfloat16|float32|{_INTEGERS}"
# [op] aclnnInplaceIndexCopy and aclnnIndexPutImpl are for a 910B and not for a 310P
ATEN_910B = _aten(_KNOWN_910B, ("float16", "bfloat16", "float32")) | {"index_copy": _index_copy(_KNOWN_910B)}
