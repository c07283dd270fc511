"""What a model on a card computes, slow and obvious: float64, rounded where the card's operators round, keys without pages."""

from dataclasses import replace

import numpy as np

from edge_llm.kernels.layout import unpack_tiles
from edge_llm.models.rope import RopeTables
from edge_llm.operations.attention import Attention
from edge_llm.operations.base import HIDDEN
from edge_llm.operations.glu import GLU
from edge_llm.operations.linear import Linear
from edge_llm.operations.norm import Norm
from edge_llm.quant.turning import turned
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.weights.resident import ResidentWeights

LARGEST = 65504.0


def logits_of(bundle, tokens):
    """float32 [len(tokens), vocabulary]."""
    decoder, weights = bundle.decoder, ResidentWeights(bundle)
    tables = RopeTables(len(tokens))
    table, places = weights.embedding_rows(np.array(tokens))
    dense = unpack_tiles(table.tiles, table.rows, table.columns)
    hidden = dense[places].astype(np.float32) * table.weight_scale[places, None]
    hidden[:, table.hot_index] = table.hot_weight[:, places].T
    for index, layer in enumerate(decoder.layers):
        hidden = run_layer(layer, weights.use(index), hidden, tables)
    (_, head), *_ = weights.head_blocks()
    normed = norm(decoder.norm, head.gains, hidden)
    return float16(product(head.linears["output"], normed)).astype(np.float32)


def run_layer(layer, block, hidden, tables):
    buffers = {HIDDEN: hidden}
    for one in layer.operations:
        x = buffers[one.reads]
        if isinstance(one, Norm):
            y = norm(one, block.gains, x)
        elif isinstance(one, Linear):
            y = product(block.linears[one.name], x, by_rows=True)
            y = np.float32(buffers[one.adds]) + np.float32(y) if one.adds else y
        elif isinstance(one, GLU):
            gate, up = np.split(float16(x).astype(float), 2, axis=1)
            y = float16(gate / (1 + np.exp(-gate)) * up)
        else:
            y = attend(one, block.gains, float16(x), tables)
        buffers[one.writes] = y
    return buffers[HIDDEN]


def float16(x):
    return np.clip(x, -LARGEST, LARGEST).astype(np.float16)


def norm(one, gains, x):
    x = x.astype(float)
    return np.float32(x / np.sqrt((x * x).mean(-1, keepdims=True) + one.eps) * gains[one.gain.name])


def product(weight, x, by_rows=False):
    """What a 310P makes of x, float32 behind a norm, else float16; ``by_rows``: rows have scales where the bundle has them."""
    if not isinstance(weight, Int8Weight):
        y = float16(float16(x).astype(float) @ weight.weight.astype(float))
        return y if weight.bias is None else float16(y.astype(float) + float16(weight.bias))
    weight = weight if weight.row_scales and by_rows else replace(weight, row_scales=False).clipped
    turns = 2.0 ** (max(weight.turn, 1).bit_length() // 2)
    given = x
    if weight.turn:
        turn = float16(turned(np.eye(weight.turn, dtype=np.float32), weight.turn) / turns).astype(float)
        x = float16((float16(x).astype(float).reshape(-1, weight.turn) @ turn).reshape(x.shape))
    if weight.row_scales:
        scales = np.abs(np.float32(float16(x))).max(1, keepdims=True) / np.float32(127)
        quantized = np.rint(np.float32(float16(x)) / scales)
        y = np.float32(int8_product(weight, quantized, weight.weight_scale * np.float32(turns))) * scales
        return y if weight.bias is None else y + np.float32(float16(weight.bias))
    inverse = (np.float32(turns) / np.float32(weight.input_scale)).astype(x.dtype)
    scale = np.float32(turns) / np.float32(inverse) if x.dtype == np.float16 else np.float32(weight.input_scale)
    reciprocal = np.full(weight.columns, inverse, x.dtype)
    reciprocal[weight.hot_index] = 0
    y = int8_product(weight, np.rint(x * reciprocal), scale * weight.weight_scale)
    if not len(weight.hot_index):
        return y
    return float16(y + float16(float16(given[:, weight.hot_index]).astype(float) @ weight.hot_weight.astype(float)))


def int8_product(weight, quantized, scale):
    quantized = np.clip(quantized, -128, 127).astype(np.int64)
    sums = quantized @ unpack_tiles(weight.tiles, weight.rows, weight.columns).astype(np.int64).T
    scale = ((np.float32(scale).view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    if weight.bias is not None and not weight.row_scales:
        sums = sums + np.rint(weight.bias / scale.astype(float)).astype(np.int64)
    return float16(np.float32(sums) * scale)


def attend(one: Attention, gains, qkv, tables):
    count, size = len(qkv), one.head_dim
    q, k, v = np.split(qkv, [one.q_size, one.q_size + one.kv_size], axis=1)
    q, k, v = (rows.reshape(count, -1, size) for rows in (q, k, v))
    if one.q_norm is not None:
        q, k = (head_norm(rows, gains[gain.name], one.eps) for rows, gain in ((q, one.q_norm), (k, one.k_norm)))
    q, k = (rotated(rows, *(table[:count] for table in tables[one.rope])) for rows in (q, k))
    group = one.heads // one.kv_heads
    k, v = (np.repeat(rows.astype(float), group, axis=1) for rows in (k, v))
    scores = np.einsum("thd,shd->hts", q.astype(float), k) * size**-0.5
    scores[:, np.triu(np.ones((count, count), bool), 1)] = -np.inf
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    return float16(np.einsum("hts,shd->thd", scores, v)).reshape(count, -1)


def head_norm(rows, gain, eps):
    x = rows.astype(float)
    return float16(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * float16(gain).astype(float))


def rotated(rows, cos, sin):
    cos, sin = (table.astype(np.float16).astype(float)[:, None] for table in (cos, sin))
    first, second = np.split(rows.astype(float), 2, axis=-1)
    return float16(np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1))
