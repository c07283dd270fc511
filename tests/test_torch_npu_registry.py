"""What the Ascend backend calls is what the real torch_npu has: schemas by its registry, shapes by its Meta kernels."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest

from edge_llm.ascend.npu import calls
from edge_llm.ascend.npu.law import OPERATORS
from edge_llm.ascend.npu.rules import NO_DEFAULT
from edge_llm.ascend.npu.schemas import SCHEMAS

pytestmark = pytest.mark.torch_npu

# an operand is a dtype and a shape; a number or a word is a setting
Case = tuple[str, dict[str, Any], list[tuple[str, tuple[int, ...]]]]

ROWS, WIDTH, WIDER, HEADS, KV_HEADS, SIZE, BLOCKS, BLOCK = 3, 64, 96, 4, 2, 64, 5, 128
QUERY = ("float16", (ROWS, 1, HEADS * SIZE))
CACHE = ("int8", (BLOCKS, BLOCK, KV_HEADS * SIZE))

TAKEN: list[Case] = [
    (
        "npu::npu_quant_matmul",
        {
            "x1": ("int8", (ROWS, WIDTH)), "x2": ("int8", (WIDTH, WIDER)), "scale": ("int64", (WIDER,)),
            "bias": ("int32", (WIDER,)), "output_dtype": "float16",
        },
        [("float16", (ROWS, WIDER))],
    ),
    (
        "npu::npu_quant_matmul",
        {
            "x1": ("int8", (ROWS, WIDTH)), "x2": ("int8", (WIDTH, WIDER)), "scale": ("float32", (WIDER,)),
            "output_dtype": "float16",
        },
        [("float16", (ROWS, WIDER))],
    ),
    ("npu::npu_trans_quant_param", {"scale": ("float32", (WIDER,))}, [("int64", (WIDER,))]),
    (
        "npu::npu_quantize",
        {
            "input": ("float32", (ROWS, WIDTH)), "scales": ("float32", (WIDTH,)), "zero_points": None, "dtype": 1, "axis": -1,
            "div_mode": False,
        },
        [("int8", (ROWS, WIDTH))],
    ),
    (
        "npu::npu_rms_norm",
        {"input": ("float32", (ROWS, WIDTH)), "gamma": ("float32", (WIDTH,)), "epsilon": 1e-5},
        [("float32", (ROWS, WIDTH)), ("float32", (ROWS, 1))],
    ),
    (
        "npu::npu_add_rms_norm",
        {"x1": ("float32", (ROWS, WIDTH)), "x2": ("float32", (ROWS, WIDTH)), "gamma": ("float32", (WIDTH,)), "epsilon": 1e-5},
        [("float32", (ROWS, WIDTH)), ("float32", (ROWS, 1)), ("float32", (ROWS, WIDTH))],
    ),
    ("npu::npu_dynamic_quant", {"input": ("float16", (ROWS, WIDTH))}, [("int8", (ROWS, WIDTH)), ("float32", (ROWS,))]),
    (
        "npu::npu_quant_matmul",
        {
            "x1": ("int8", (ROWS, WIDTH)), "x2": ("int8", (WIDTH, WIDER)), "scale": ("float32", (WIDER,)),
            "pertoken_scale": ("float32", (ROWS,)), "bias": ("float32", (WIDER,)), "output_dtype": "float16",
        },
        [("float16", (ROWS, WIDER))],
    ),
    ("npu::npu_swiglu", {"input": ("float16", (ROWS, 2 * WIDTH)), "dim": -1}, [("float16", (ROWS, WIDTH))]),
    (
        "npu::npu_apply_rotary_pos_emb",
        {
            "query": ("float16", (1, ROWS, HEADS, SIZE)), "key": ("float16", (1, ROWS, KV_HEADS, SIZE)),
            "cos": ("float16", (1, ROWS, 1, SIZE)), "sin": ("float16", (1, ROWS, 1, SIZE)), "layout": "BSND",
            "rotary_mode": "half",
        },
        [("float16", (1, ROWS, HEADS, SIZE)), ("float16", (1, ROWS, KV_HEADS, SIZE))],
    ),
    (
        "npu::npu_incre_flash_attention",
        {
            "query": QUERY, "key": CACHE, "value": CACHE, "antiquant_scale": ("float16", (2, KV_HEADS * SIZE)),
            "block_table": ("int32", (ROWS, 2)), "actual_seq_lengths": [1, 130, 128], "num_heads": HEADS,
            "num_key_value_heads": KV_HEADS, "scale_value": 0.125, "input_layout": "BSH", "block_size": BLOCK,
        },
        [QUERY],
    ),
]  # fmt: skip

# what a call of TAKEN must not be changed to
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("npu::npu_quant_matmul", {"x2": ("int8", (WIDTH + 32, WIDER))}),
    ("npu::npu_quant_matmul", {"x1": ("int8", (WIDTH,))}),
    ("npu::npu_quant_matmul", {"scale": ("int64", (WIDER - 1,))}),
    ("npu::npu_quant_matmul", {"bias": ("int32", (WIDER - 1,))}),
    ("npu::npu_quant_matmul", {"offset": ("float16", (WIDER,))}),
    ("npu::npu_trans_quant_param", {"scale": ("float32", (2, WIDER))}),
    ("npu::npu_swiglu", {"dim": 5}),
]


LAW = [
    (chip, f"{known.namespace}::{name}", known)
    for chip, operators in OPERATORS.items()
    for name, known in operators.items()
    if known.namespace in ("npu", "atb")
]


def operands(torch: Any, call: dict[str, Any], device: str) -> dict[str, Any]:
    def made(value: Any) -> Any:
        match value:
            case (str(dtype), tuple(shape)):
                return torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
            case "float16":
                return torch.float16
        return value

    return {name: made(value) for name, value in call.items()}


def kinds(results: Any) -> list[tuple[str, tuple[int, ...]]]:
    listed = () if results is None else results if isinstance(results, tuple | list) else (results,)
    return [(str(result.dtype).removeprefix("torch."), tuple(result.shape)) for result in listed]


def parameters(schema: Any) -> dict[str, tuple[Any, ...]]:
    """Of each parameter whether it is a tensor, and its default if it has one."""
    return {
        one.name: ("Tensor" in str(one.type), *((one.default_value,) if one.has_default_value() else ()))
        for one in schema.arguments
    }


def registry_facts(
    schemas: list[str], in_law: list[str], taken: list[Case], refused: list[tuple[str, dict[str, Any]]]
) -> dict[str, Any]:
    """What the registry says, and what calls give on Meta tensors and, by the package's kernels, on the card."""
    import torch
    import torch_npu  # noqa: F401
    from standins import kernels

    from edge_llm.ascend.npu.emulated_ops import IMPLEMENTATIONS

    def operator(name: str) -> Any:
        space, _, base = name.partition("::")
        return getattr(getattr(torch.ops, space), base).default

    def outcome(name: str, call: dict[str, Any], device: str) -> Any:
        try:
            return kinds(operator(name)(**operands(torch, call, device)))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    facts = {
        "schemas": {name: str(operator(name)._schema) for name in schemas},
        "parameters": {name: parameters(operator(name)._schema) for name in in_law},
        "taken": [outcome(name, call, "meta") for name, call, _ in taken],
        "have Meta": [
            name for name in schemas if torch._C._dispatch_has_kernel_for_dispatch_key(operator(name).name(), "Meta")
        ],
        "refused": [outcome(name, call, "meta") for name, call in refused],
    }
    kernels.install(IMPLEMENTATIONS)
    return facts | {"on the card": [outcome(name, call, "npu") for name, call, _ in taken]}


@pytest.fixture(scope="module")
def registry(card):
    base = {name: call for name, call, _ in reversed(TAKEN)}
    refused = [(name, base[name] | change) for name, change in REFUSED]
    return card.run(registry_facts, sorted(SCHEMAS), sorted({name for _, name, _ in LAW}), TAKEN, refused)


def test_every_operator_that_is_called_has_a_schema():
    called = {
        f"{node.value.attr.removeprefix('_')}::{node.attr}"
        for node in ast.walk(ast.parse(inspect.getsource(calls)))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr in ("_npu", "_atb")
    }
    assert called and called <= set(SCHEMAS)


def test_every_schema_is_that_of_the_registry(registry):
    found = registry["schemas"]
    assert found == {name: f"{name.partition('::')[0]}::{schema}" for name, schema in SCHEMAS.items()}


@pytest.mark.parametrize(("chip", "name", "known"), LAW, ids=[f"{chip}-{name}" for chip, name, _ in LAW])
def test_the_law_speaks_of_parameters_of_the_registry(registry, chip, name, known):
    found = registry["parameters"][name]
    assert [operand for operand in known.operands if not found.get(operand, (False,))[0]] == []
    settings = {name: (False,) if value is NO_DEFAULT else (False, value) for name, value in known.settings.items()}
    assert {setting: found.get(setting) for setting in settings} == settings


def test_every_operator_that_torch_npu_has_shapes_for_is_asked_for_them(registry):
    assert set(registry["have Meta"]) == {name for name, *_ in TAKEN}


@pytest.mark.parametrize("number", range(len(TAKEN)), ids=[f"{n}-{case[0]}" for n, case in enumerate(TAKEN)])
def test_torch_npu_and_our_implementations_have_the_same_results_of_our_operands(registry, number):
    expected = TAKEN[number][2]
    assert (registry["taken"][number], registry["on the card"][number]) == (expected, expected)


@pytest.mark.parametrize("number", range(len(REFUSED)), ids=[f"{n}-{case[0]}" for n, case in enumerate(REFUSED)])
def test_torch_npu_refuses_other_operands(registry, number):
    assert isinstance(registry["refused"][number], str), registry["refused"][number]
