"""What attention, the writing of keys and values, and rotation take on each chip.

Keys and values lie in blocks of ``block_size`` tokens, which ``block_table`` numbers.  On a 310P a block of NZ keys is
[heads * head_size / 16, block_size, 16].  Tags of sources are those of `edge_llm.ascend.npu.chips`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edge_llm.ascend.npu.rules import NO_DEFAULT, Form, Layout, Limit, Operator, shapes, types

EVER = 2147483647
_GROUP = {"num_heads/num_key_value_heads": Limit("op", most=64)}
_ZERO = {"num_key_value_heads": "num_heads"}
_MASK = "bool|int8|uint8|-"
_KEYS = {  # of a layout, contiguous; "1" is where a step has one query
    "BSH": ("sequences {q} num_heads*head_size", "sequences keys num_key_value_heads*head_size"),
    "BNSD": ("sequences num_heads {q} head_size", "sequences num_key_value_heads keys head_size"),
    "BSND": ("sequences {q} num_heads head_size", "sequences keys num_key_value_heads head_size"),
}
_BLOCKS = "blocks block_size num_key_value_heads*head_size"
_HEAD_BLOCKS = "blocks num_key_value_heads block_size head_size"  # [op] with queries as BNSD only, and faster
_CHANNEL_SCALES = {  # of keys and of values, one over the other
    "BSH": "2 num_key_value_heads*head_size",
    "BNSD": "2 num_key_value_heads 1 head_size",
    "BSND": "2 num_key_value_heads head_size",
}
_STEP_MASK = "sequences 1 1 keys|sequences 1 keys|sequences keys"
_LINE = {"num_key_value_heads*head_size": Limit("op", most=65535)}


def _whole(layout: str, queries: str, mask: str, **more: str) -> Layout:
    """Keys and values side by side, one run for each sequence."""
    query, key = _KEYS[layout]
    named = shapes(query=query.format(q=queries), key=key, value=key, atten_mask=mask, **more)
    return Layout(named, when={"input_layout": (layout,)})


def _paged(
    layout: str, query: str, blocks: str, lengths: str, block_size: Limit, mask: str, limits: dict[str, Limit], **more: str
) -> Layout:
    """Keys and values in blocks; ``lengths`` are on the host, one for each sequence."""
    return Layout(
        shapes(query=query, key=blocks, value=blocks, block_table="sequences table", atten_mask=mask, **more),
        when={"input_layout": (layout,)},
        needs=("block_table", lengths),
        limits={"block_size": block_size, **limits},
        within={f"{lengths}.count": "sequences", "sequences": f"{lengths}.count", f"{lengths}.largest": "table*block_size"},
    )


# ---- one query a sequence ----


def _incre(forms: tuple[Form, ...], sequences: int, keys: int) -> Operator:
    block_size = Limit("op", least=16, multiple=16)
    most_keys = {"table*block_size": Limit("op", most=keys)}
    queries = {name: query.format(q=1) for name, (query, _) in _KEYS.items()}
    lengths = "actual_seq_lengths"
    blocks = [
        _paged(
            name, query, _BLOCKS, lengths, block_size, "", _LINE | most_keys,
            antiquant_scale=_CHANNEL_SCALES[name], antiquant_offset=_CHANNEL_SCALES[name],
        )
        for name, query in queries.items()
    ]  # fmt: skip
    scales = _CHANNEL_SCALES["BNSD"]
    head_blocks = _paged(
        "BNSD", queries["BNSD"], _HEAD_BLOCKS, lengths, block_size, "", most_keys,
        antiquant_scale=scales, antiquant_offset=scales,
    )  # fmt: skip
    whole = [
        _whole(name, "1", _STEP_MASK, antiquant_scale=scale, antiquant_offset=scale) for name, scale in _CHANNEL_SCALES.items()
    ]
    return Operator(
        "npu",
        forms,
        layouts=(*whole, head_blocks, *blocks),
        settings={
            "num_heads": 1, "scale_value": 1.0, "input_layout": "BSH", "num_key_value_heads": 0, "block_size": 0,
            "inner_precise": 1, lengths: None,
        },
        limits={
            "sequences": Limit("op", most=sequences), "num_heads": Limit("op", most=256), "keys": Limit("op", most=keys),
            "head_size": Limit("op assumed", multiple=16, most=512), "inner_precise": Limit("op", among=(0, 1)), **_GROUP,
        },
        zero_means=_ZERO,
    )  # fmt: skip


def _incre_forms(*floats: str) -> tuple[Form, ...]:
    plain = [
        Form("op", types(query=one, key=one, value=one, block_table="int32|-", atten_mask=_MASK)) for one in floats
    ]
    int8 = [
        Form(
            "op",
            types(
                query=one, key="int8", value="int8", antiquant_scale=one, antiquant_offset=f"{one}|-", block_table="int32|-",
                atten_mask=_MASK,
            ),
            # blocks: [op] of a multiple of 32; heads: [assumed] as of a 910B's npu_fused_infer_attention_score
            {"block_size": Limit("op", least=0, multiple=32), "head_size": Limit("assumed", multiple=32, most=512)},
        )
        for one in floats
    ]  # fmt: skip
    return (*plain, *int8)


_INCRE_310P = _incre(_incre_forms("float16"), sequences=256, keys=65536)
INCRE_FLASH_310P = replace(  # [src] the tiling there: so many heads may share one of keys, and blocks hold all of a token
    _INCRE_310P,
    layouts=tuple(one for one in _INCRE_310P.layouts if one.shapes["key"] != shapes(key=_HEAD_BLOCKS)["key"]),
    limits={
        **_INCRE_310P.limits, "num_heads/num_key_value_heads": Limit("src", most=32),
        "head_size": Limit("src", multiple=16, most=128),
    },
)  # fmt: skip
INCRE_FLASH_910B = _incre(_incre_forms("float16", "bfloat16"), sequences=65535, keys=262144)

# ---- a prompt, or equally long pieces of some ----

_PROMPT_MASK = "queries keys|1 queries keys|sequences queries keys|1 1 queries keys|sequences 1 queries keys"
_CAUSAL_MASK = "2048 2048|1 2048 2048|1 1 2048 2048"
_PROMPT = Operator(
    "npu",
    forms=(Form("op", types(query="float16", key="float16", value="float16", atten_mask=_MASK)),),
    layouts=tuple(_whole(layout, "queries", _PROMPT_MASK) for layout in _KEYS),
    settings={
        "num_heads": 1, "scale_value": 1.0, "pre_tokens": EVER, "next_tokens": 0, "input_layout": "BSH",
        "num_key_value_heads": 0, "sparse_mode": 0, "actual_seq_lengths": None, "actual_seq_lengths_kv": None,
    },
    limits={
        "num_heads": Limit("op", most=256), "head_size": Limit("op", multiple=16, most=512),
        "next_tokens": Limit("op", among=(0, EVER)), "pre_tokens": Limit("op", among=(EVER,)),
    },
    zero_means=_ZERO,
)  # fmt: skip
PROMPT_FLASH_310P = replace(
    _PROMPT,
    limits={
        **_PROMPT.limits, "sequences": Limit("op", most=128), "queries": Limit("op", most=65535),
        "keys": Limit("op", most=65535), "sparse_mode": Limit("op", among=(0,)),
        "num_key_value_heads": Limit("op", among=(0,)),  # as many heads of keys as of queries
        "actual_seq_lengths": Limit("op", among=(None,)), "actual_seq_lengths_kv": Limit("op", among=(None,)),
    },
)  # fmt: skip
PROMPT_FLASH_910B = replace(
    _PROMPT,
    forms=tuple(
        Form("op", types(query=one, key=one, value=one, atten_mask=_MASK)) for one in ("float16", "bfloat16")
    ),
    layouts=(
        *(replace(one, when={**one.when, "sparse_mode": (0, 1)}) for one in _PROMPT.layouts),
        *(
            replace(
                one, shapes={**one.shapes, **shapes(atten_mask=_CAUSAL_MASK)}, when={**one.when, "sparse_mode": (2, 3)},
                needs=("atten_mask",),
            )
            for one in _PROMPT.layouts
        ),
    ),
    limits={
        **_PROMPT.limits, **_GROUP, "sequences": Limit("op", most=65536), "queries": Limit("op", most=20971520),
        "keys": Limit("op", most=20971520), "sparse_mode": Limit("op", among=(0, 1, 2, 3)),
    },
)  # fmt: skip

# ---- a 910B's attention for both ----

_SCALE = "num_key_value_heads 1 head_size|num_key_value_heads head_size|num_key_value_heads*head_size"
_SCALES = {"key_antiquant_scale": _SCALE, "value_antiquant_scale": _SCALE}


def _fused_layouts() -> tuple[Layout, ...]:
    """One query a sequence, several, and pieces of any length in one run (TND), each with keys side by side and in blocks."""
    lengths = "actual_seq_lengths_kv"
    step, prompt = Limit("op", multiple=16, most=512), Limit("op", least=128, multiple=128, most=512)
    run = Limit("op", multiple=16, most=1024)
    several = {"queries": Limit("op", least=2)}
    found: list[Layout] = []
    for name, (query, _) in _KEYS.items():
        one, many = query.format(q=1), query.format(q="queries")
        blocks = [_BLOCKS, _HEAD_BLOCKS] if name == "BNSD" else [_BLOCKS]
        found.append(_whole(name, "1", _STEP_MASK, **_SCALES))
        found += [
            replace(_whole(name, "queries", _PROMPT_MASK), limits=several),
            replace(_whole(name, "queries", _CAUSAL_MASK), limits=several, needs=("atten_mask",)),
        ]
        found += [_paged(name, one, kind, lengths, step, "", _line(kind), **_SCALES) for kind in blocks]
        found += [_paged(name, many, kind, lengths, prompt, _CAUSAL_MASK, _line(kind) | several) for kind in blocks]
    tokens, heads = "tokens num_heads head_size", {"head_size": Limit("op", among=(128, 192))}
    for kind in (_BLOCKS, _HEAD_BLOCKS):
        paged = _paged("TND", tokens, kind, lengths, run, _CAUSAL_MASK, _line(kind) | heads)
        found.append(replace(paged, needs=(*paged.needs, "actual_seq_lengths")))
    return tuple(found)


def _line(blocks: str) -> dict[str, Limit]:
    return _LINE if blocks == _BLOCKS else {}


def _fused_forms() -> tuple[Form, ...]:
    common = {"block_table": ("int32", None), "atten_mask": ("bool", "int8", "uint8", None)}
    plain = [Form("op", types(query=one, key=one, value=one) | common) for one in ("float16", "bfloat16")]
    int8 = [
        Form(
            "op",
            types(query=one, key="int8", value="int8", key_antiquant_scale=one, value_antiquant_scale=one) | common,
            {"block_size": Limit("op", least=0, multiple=32, most=512), "head_size": Limit("op", multiple=32, most=512)},
        )
        for one in ("float16", "bfloat16")
    ]
    return (*plain, *int8)


FUSED_INFER_910B = Operator(
    "npu",
    forms=_fused_forms(),
    layouts=_fused_layouts(),
    settings={
        "actual_seq_lengths": None, "actual_seq_lengths_kv": None, "num_heads": 1, "scale": 1.0, "pre_tokens": EVER,
        "next_tokens": EVER, "input_layout": "BSH", "num_key_value_heads": 0, "sparse_mode": 0, "inner_precise": 0,
        "block_size": 0, "key_antiquant_mode": 0, "value_antiquant_mode": 0,
    },
    limits={
        "sequences": Limit("op", most=65536), "num_heads": Limit("op", most=256), **_GROUP,
        "head_size": Limit("op", multiple=8, most=512),  # 16 bytes
        "sparse_mode": Limit("op", among=(0, 1, 2, 3)), "inner_precise": Limit("op", among=(0, 1, 2, 3)),
        "key_antiquant_mode": Limit("op", among=(0,)), "value_antiquant_mode": Limit("op", among=(0,)),  # a scale a channel
    },
    zero_means=_ZERO,
)  # fmt: skip

# ---- Ascend Transformer Boost ----

_NZ_BLOCKS = "blocks num_kv_heads*head_size/16 block_size 16"
_ND_BLOCKS = "blocks block_size num_kv_heads head_size"
_NZ_CACHE = {"key_cache": True, "value_cache": True}
_HEADS = {"num_kv_heads": NO_DEFAULT, "num_heads": NO_DEFAULT, "scale_value": NO_DEFAULT}
_ATB_LIMITS = {
    "block_size": Limit("atb", multiple=16), "num_heads/num_kv_heads": Limit("atb"),
    "head_size": Limit("atb", multiple=16, most=256),  # 16: of NZ
}  # fmt: skip
_ATB_310P = {**_ATB_LIMITS, "sequences": Limit("atb", most=2000), "block_size*head_size": Limit("atb", most=128 * 128)}
_ATB_FLOATS = {"310p": ("float16",), "910b": ("float16", "bfloat16")}


def _reshape_and_cache(chip: str, blocks: str, nz: Mapping[str, bool | None]) -> Operator:
    keys = "tokens num_kv_heads head_size"
    return Operator(
        "atb",
        forms=tuple(
            Form("atb", types(key=one, value=one, key_cache=one, value_cache=one, slot_indices="int32"))
            for one in _ATB_FLOATS[chip]
        ),
        layouts=(Layout(shapes(key=keys, value=keys, key_cache=blocks, value_cache=blocks, slot_indices="tokens"), nz=nz),),
        limits={"block_size": _ATB_LIMITS["block_size"]},
    )


def _paged_attention(chip: str, blocks: str, nz: Mapping[str, bool | None], limits: dict[str, Limit]) -> Operator:
    """A step: one query a sequence, lengths on the card."""
    queries = "sequences num_heads head_size"
    named = shapes(
        query=queries, key_cache=blocks, value_cache=blocks, block_table="sequences table", context_lens="sequences",
        out=queries, workspace="",
    )  # fmt: skip
    return Operator("atb", _atb_forms(chip, workspace="uint8|-"), (Layout(named, nz=nz),), _HEADS, limits)


def _splitfuse(chip: str, blocks: str, nz: Mapping[str, bool | None], mask: str, limits: dict[str, Limit]) -> Operator:
    """Pieces of prompts in one run of tokens; ``seq_len`` is their lengths, on the host."""
    tokens = "tokens num_heads head_size"
    named = shapes(
        query=tokens, key_cache=blocks, value_cache=blocks, block_table="sequences table", context_lens="sequences",
        seq_len="sequences", mask=mask, out=tokens,
    )  # fmt: skip
    layout = Layout(named, nz=nz, within={"tokens": "mask_rows", "sequences": "tokens"})
    forms = _atb_forms(chip, seq_len="int32", mask="float16" if chip == "310p" else "float16|bfloat16")
    return Operator("atb", forms, (layout,), _HEADS, {**limits, "block_size": Limit("atb", multiple=16, most=128)})


def _one_mask(splitfuse: Operator) -> Operator:
    """The same with one causal mask for all pieces, of whatever length."""
    [layout] = splitfuse.layouts
    layout = replace(
        layout,
        shapes={**layout.shapes, **shapes(mask="2048 2048")},
        nz={**layout.nz, "mask": False},
        within={"sequences": "tokens"},
    )
    limits = {**splitfuse.limits, "mask_type": Limit("src", among=(5,))}
    return replace(splitfuse, layouts=(layout,), settings={**_HEADS, "mask_type": 5}, limits=limits)


def _atb_forms(chip: str, **more: str) -> tuple[Form, ...]:
    return tuple(
        Form("atb", types(
            query=one, key_cache=one, value_cache=one, block_table="int32", context_lens="int32", out=one, **more
        ))
        for one in _ATB_FLOATS[chip]
    )  # fmt: skip


def _rotary(chip: str) -> Operator:
    """Queries and keys of one run of tokens, in place.

    ATB's `_npu_rotary_embedding` takes other head sizes, but keeps the angles of its first call in the process [src].
    """
    named = shapes(
        query="1 tokens heads head_size", key="1 tokens kv_heads head_size", cos="1 tokens 1 head_size",
        sin="1 tokens 1 head_size",
    )  # fmt: skip
    return Operator(
        "npu",
        forms=tuple(Form("op", types(query=one, key=one, cos=one, sin=one)) for one in (*_ATB_FLOATS[chip], "float32")),
        layouts=(Layout(named),),
        settings={"layout": "BSND", "rotary_mode": "half"},
        limits={
            "head_size": Limit("op", among=(64, 128)), "layout": Limit("op", among=("BSND",)),
            "rotary_mode": Limit("op", among=("half",)),
        },
    )  # fmt: skip


RESHAPE_AND_CACHE_310P = _reshape_and_cache("310p", _NZ_BLOCKS, _NZ_CACHE)
RESHAPE_AND_CACHE_910B = _reshape_and_cache("910b", _ND_BLOCKS, {})
PAGED_ATTENTION_310P = _paged_attention("310p", _NZ_BLOCKS, _NZ_CACHE, _ATB_310P)
PAGED_ATTENTION_910B = _paged_attention("910b", _ND_BLOCKS, {}, _ATB_LIMITS)
SPLITFUSE_310P = _splitfuse(  # [vllm] the mask's rows are filled up to a multiple of 16
    "310p", _NZ_BLOCKS, {**_NZ_CACHE, "mask": True}, "1 mask_columns mask_rows 16",
    {**_ATB_310P, "num_heads": Limit("src", most=256), "num_heads*head_size": Limit("src", most=16384)},
)
SPLITFUSE_910B = _splitfuse("910b", _ND_BLOCKS, {}, "mask_rows mask_columns", _ATB_LIMITS)
SPLITFUSE_V2_310P = _one_mask(SPLITFUSE_310P)  # [atb] paged attention has this mask on a 310P only
ROTARY_310P, ROTARY_910B = _rotary("310p"), _rotary("910b")

_PA_NZ, _NORM = {"cache_mode": ("PA_NZ",)}, {"cache_mode": ("Norm",)}
_NEW_KEYS = "tokens num_kv_heads head_size"
SCATTER_910B = Operator(
    "npu",
    forms=tuple(
        Form("op", types(key=one, value=one, key_cache=one, value_cache=one, slot_mapping="int32|int64"))
        for one in ("float16", "bfloat16", "int8")
    ),
    layouts=(
        Layout(
            shapes(key=_NEW_KEYS, value=_NEW_KEYS, key_cache=_ND_BLOCKS, value_cache=_ND_BLOCKS, slot_mapping="tokens"),
            when=_NORM,
        ),
        *(
            Layout(
                shapes(key=_NEW_KEYS, value=_NEW_KEYS, key_cache=blocks, value_cache=blocks, slot_mapping="tokens"),
                when={**_PA_NZ, "key": kinds},
                nz=_NZ_CACHE,
            )
            for blocks, kinds in (
                (_NZ_BLOCKS, ("float16", "bfloat16")),
                ("blocks num_kv_heads*head_size/32 block_size 32", ("int8",)),
            )
        ),
    ),
    settings={"cache_mode": "PA_NZ"},
    limits={"block_size": Limit("assumed", multiple=16)},
)
