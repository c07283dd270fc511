"""Trains edge-llm's built-in chat model from nothing and writes it as a Hugging Face folder.

    python assets/builtin_model/train.py --out DIR               # 15 to 30 minutes on two CPU cores
    python assets/builtin_model/train.py --out DIR --steps 50    # a quick look at the whole path
    python assets/builtin_model/train.py --out DIR --experts 8   # a toy Mixtral instead: 2 of 8 experts a row
    python assets/builtin_model/train.py --out DIR --experts 8 --from DENSE --steps 200    # soon: of parts of an MLP
    python assets/builtin_model/train.py --out DIR --relu --from DENSE --steps 150    # ReLU in the gates, most of them zero

The text comes from `corpus.py`, with a fixed seed and without any download. The result is a Llama of 2.3 million
parameters with a byte-level BPE tokenizer of 1536 tokens, its weights rounded to float16 (4.5 MB). At the end
`evaluate.py` asks it the held-out questions; it answers about 95 % of them rightly. Needs torch, tokenizers,
safetensors, and transformers for the evaluation.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import corpus
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn

SPECIAL_TOKENS = [corpus.BOS, corpus.END, corpus.SYSTEM, corpus.USER, corpus.ASSISTANT]
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] not in ('system', 'user', 'assistant') -%}
{{- raise_exception('the roles of this model are system, user and assistant') -}}
{%- endif -%}
{{- '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""


PARTS = 4
"""An expert is so much narrower than the MLP of the model without experts."""


@dataclass(frozen=True)
class Shape:
    """The sizes of the model; the names follow Hugging Face's Llama config."""

    vocab_size: int = 1536
    hidden_size: int = 192
    intermediate_size: int = 512
    num_hidden_layers: int = 5
    num_attention_heads: int = 6
    num_key_value_heads: int = 2
    head_dim: int = 32
    max_position_embeddings: int = 1024
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    num_local_experts: int = 0
    """Of a layer; 0: its MLP is one."""
    num_experts_per_tok: int = 2
    hidden_act: str = "silu"

    @classmethod
    def of_experts(cls, count: int) -> "Shape":
        """A mixture of ``count`` experts, each a part as wide as the MLP without any."""
        return cls(intermediate_size=cls.intermediate_size // PARTS, num_local_experts=count)


# ---- tokenizer -----------------------------------------------------------------------------------------------------


def train_tokenizer(vocab_size: int, num_documents: int = 20_000) -> Tokenizer:
    """Byte-level BPE over the corpus; digits stay single, and every byte has a token."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (text for document in islice(corpus.documents(0, set()), num_documents) for _, text in document)
    tokenizer.train_from_iterator(texts, trainer)
    bos = (corpus.BOS, tokenizer.token_to_id(corpus.BOS))
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{corpus.BOS} $A", special_tokens=[bos])
    return tokenizer


# ---- batches -------------------------------------------------------------------------------------------------------


def rows(tokenizer: Tokenizer, length: int, seed: int) -> Iterator[np.ndarray]:
    """Endless rows of `length` tokens; each starts with a document and is filled with whole ones but the last."""
    documents = corpus.documents(seed, corpus.banned_questions())
    row: list[int] = []
    while True:
        texts = [corpus.render(document) for document in islice(documents, 1000)]
        for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
            row += encoding.ids
            if len(row) >= length:
                yield np.array(row[:length])
                row = []


def batches(tokenizer: Tokenizer, batch: int, length: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Inputs, targets and the weights of the targets: [batch, length] each."""
    source = rows(tokenizer, length + 1, seed)
    while True:
        tokens = np.stack(list(islice(source, batch)))
        weights = target_weights(tokens, tokenizer)
        yield torch.from_numpy(tokens[:, :-1]), torch.from_numpy(tokens[:, 1:]), torch.from_numpy(weights[:, 1:])


def target_weights(tokens: np.ndarray, tokenizer: Tokenizer, asked: float = 0.08) -> np.ndarray:
    """1 for what the model says, `asked` for what others say, 0 for the mark that begins the next document."""
    bos, _, system, user, assistant = (tokenizer.token_to_id(name) for name in SPECIAL_TOKENS)
    opens = np.isin(tokens, np.array([bos, system, user, assistant]))
    columns = np.arange(tokens.shape[1])
    latest = np.maximum.accumulate(np.where(opens, columns, 0), axis=1)
    role = np.take_along_axis(tokens, latest, axis=1)
    others = np.isin(role, np.array([system, user])) | opens
    weights = np.where(others, asked, 1.0)
    return np.where(tokens == bos, 0.0, weights).astype(np.float32)


# ---- model ---------------------------------------------------------------------------------------------------------


def rope_tables(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles: [length, head_dim]."""
    frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    angles = torch.outer(torch.arange(length).float(), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [batch, heads, length, head_dim]"""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos + turned * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        query, key = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, query, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, key, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, key, bias=False)
        self.o_proj = nn.Linear(query, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        projected = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, k, v = (y.view(batch, length, -1, self.shape.head_dim).transpose(1, 2) for y in projected)
        groups = self.shape.num_attention_heads // self.shape.num_key_value_heads
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)
        self.is_relu = shape.hidden_act == "relu"
        self.size = torch.zeros(())
        """How large the gates of the last rows were behind ReLU; differentiable."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_relu:
            return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        gate = nn.functional.relu(self.gate_proj(x))
        self.size = gate.float().mean()
        return self.down_proj(gate * self.up_proj(x))


class Mixture(nn.Module):
    """Experts of which every row goes to the best few, weighed by the softmax over those."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.used = shape.num_experts_per_tok
        self.gate = nn.Linear(shape.hidden_size, shape.num_local_experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(shape) for _ in range(shape.num_local_experts))
        self.unevenness = torch.zeros(())
        """How unevenly the last rows went to experts: 1 for evenly; differentiable."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        scores = self.gate(rows).float().softmax(dim=-1)
        weights, chosen = scores.topk(self.used, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        y = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            at, rank = (chosen == number).nonzero(as_tuple=True)
            y = y.index_add(0, at, (expert(rows[at]) * weights[at, rank, None]).to(y.dtype))
        shares = torch.stack([(chosen == number).any(dim=-1).float().mean() for number in range(len(self.experts))])
        self.unevenness = (shares * scores.mean(dim=0)).sum() * len(self.experts) / self.used
        return y.view_as(x)


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.mlp = Mixture(shape) if shape.num_local_experts else FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """A Llama whose parameters carry Hugging Face's names; the embedding is also the output matrix."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.apply(self._initialise)

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, Attention):
            nn.init.normal_(module.o_proj.weight, std=0.02 / math.sqrt(2 * self.shape.num_hidden_layers))
        if isinstance(module, FeedForward):
            nn.init.normal_(module.down_proj.weight, std=0.02 / math.sqrt(2 * self.shape.num_hidden_layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [batch, length] -> logits: [batch, length, vocab]"""
        x = self.embed_tokens(tokens)
        cos, sin = rope_tables(self.shape, tokens.shape[1])
        for layer in self.layers:
            x = layer(x, cos, sin)
        return nn.functional.linear(self.norm(x), self.embed_tokens.weight)


# ---- training ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to learn; every few steps the rows are as long as the context."""

    steps: int = 2400
    warmup: int = 60
    tokens_per_step: int = 4096
    row: int = 512
    long_row: int = 1024
    long_every: int = 5
    matrix_rate: float = 0.01
    vector_rate: float = 0.004
    weight_decay: float = 0.1
    evenness: float = 0.02
    """What the unevenness of mixtures counts beside the loss."""
    sparsity: float = 0.1
    """What the size of gates behind ReLU counts there: less of it, and more of them are zero (ProSparse, arXiv 2402.13516)."""

    def rate(self, step: int) -> float:
        """The share of the full learning rate: a short warm-up, then a cosine down to 1 %."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

    def row_length(self, step: int) -> int:
        return self.row if step % self.long_every else self.long_row


def optimizers(model: Llama, schedule: Schedule) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms."""
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    norms = [p for p in model.parameters() if p.ndim == 1]
    muon = torch.optim.Muon(
        matrices, lr=schedule.matrix_rate, weight_decay=schedule.weight_decay, momentum=0.95, adjust_lr_fn="original"
    )
    groups = [{"params": [model.embed_tokens.weight], "weight_decay": 0.01}, {"params": norms, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=schedule.vector_rate, betas=(0.9, 0.98), eps=1e-9)
    return [muon, adam]


def loss_of(model: Callable[[Tensor], Tensor], tokens: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens)
    losses = nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


def unevenness_of(model: Llama) -> Tensor:
    """Of all mixtures, over the rows that went last; 0 where there are none."""
    return sum((module.unevenness for module in model.modules() if isinstance(module, Mixture)), torch.zeros(()))


def size_of(model: Llama) -> Tensor:
    """Of all gates behind ReLU, over the rows that went last; 0 where there are none."""
    return sum((module.size for module in model.modules() if isinstance(module, FeedForward)), torch.zeros(()))


def begin_as(model: Llama, dense: Path) -> None:
    """``model`` begins as the trained one in the folder ``dense``: sparse upcycling (Komatsuzaki, 2022, arXiv 2212.05055).

    An expert is a quarter of the MLP there, a little off, and as loud as two of four quarters have to be.
    """
    trained = {name.removeprefix("model."): tensor.float() for name, tensor in load_file(dense / "model.safetensors").items()}
    for name, parameter in model.named_parameters():
        if ".mlp.gate." in name:
            continue
        before, experts, after = name.partition(".experts.")
        value = trained[f"{before}.{after.partition('.')[2]}" if experts else name]
        if experts:
            axis, number = int(".down_proj." in name), int(after.partition(".")[0])
            part = value.chunk(PARTS, axis)[number % PARTS]
            value = (part + 0.1 * part.std() * torch.randn_like(part)) * (PARTS / 2 if axis else 1)
        parameter.data.copy_(value)


def train(model: Llama, tokenizer: Tokenizer, schedule: Schedule, seed: int) -> float:
    """Trains in place and returns the mean loss of the last hundred steps."""
    steppers = optimizers(model, schedule)
    full_rates = [[group["lr"] for group in stepper.param_groups] for stepper in steppers]
    short = batches(tokenizer, schedule.tokens_per_step // schedule.row, schedule.row, seed)
    long = batches(tokenizer, schedule.tokens_per_step // schedule.long_row, schedule.long_row, seed + 1)
    is_eager = model.shape.num_local_experts or model.shape.hidden_act == "relu"
    compiled = model if is_eager else torch.compile(model, dynamic=False)
    recent: list[float] = []
    start = time.time()
    for step in range(schedule.steps):
        for stepper, rates in zip(steppers, full_rates, strict=True):
            for group, rate in zip(stepper.param_groups, rates, strict=True):
                group["lr"] = rate * schedule.rate(step)
        batch = next(long if schedule.row_length(step) == schedule.long_row else short)
        loss = loss_of(compiled, *batch)
        (loss + schedule.evenness * unevenness_of(model) + schedule.sparsity * size_of(model)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        recent = [*recent[-99:], loss.item()]
        if step % 50 == 0 or step == schedule.steps - 1:
            report(step, schedule, recent, time.time() - start)
    return sum(recent) / len(recent)


def report(step: int, schedule: Schedule, recent: list[float], seconds: float) -> None:
    speed = (step + 1) * schedule.tokens_per_step / seconds
    last = recent[-50:]
    loss = sum(last) / len(last)
    print(f"step {step:5d}/{schedule.steps}  loss {loss:.4f}  {speed:,.0f} tokens/s  {seconds:.0f} s", flush=True)


# ---- export --------------------------------------------------------------------------------------------------------


def hugging_face_config(shape: Shape, tokenizer: Tokenizer) -> dict:
    sizes = {name: getattr(shape, name) for name in Shape.__dataclass_fields__}
    is_mixture = shape.num_local_experts > 0
    if not is_mixture:
        del sizes["num_local_experts"], sizes["num_experts_per_tok"]
    return {
        "architectures": ["MixtralForCausalLM" if is_mixture else "LlamaForCausalLM"],
        "model_type": "mixtral" if is_mixture else "llama",
        **sizes,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "rope_scaling": None,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "bos_token_id": tokenizer.token_to_id(corpus.BOS),
        "eos_token_id": tokenizer.token_to_id(corpus.END),
        "pad_token_id": tokenizer.token_to_id(corpus.END),
        "torch_dtype": "float16",
        "use_cache": True,
    }


def tokenizer_config() -> dict:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": corpus.BOS,
        "eos_token": corpus.END,
        "pad_token": corpus.END,
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": Shape.max_position_embeddings,
        "chat_template": CHAT_TEMPLATE,
    }


def published(name: str) -> str:
    """What Hugging Face calls the parameter ``name``: a Mixtral has names of its own for its experts."""
    if ".mlp.gate." not in name and ".mlp.experts." not in name:
        return name
    for ours, theirs in (("mlp", "block_sparse_moe"), ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
        name = name.replace(f".{ours}.", f".{theirs}.")
    return name


def export(model: Llama, tokenizer: Tokenizer, out: Path) -> None:
    """Writes the folder beside `out` and swaps it in, so that nobody sees half of one."""
    fresh = out.with_name(f"{out.name}.new-{os.getpid()}")
    fresh.mkdir(parents=True)
    weights = {f"model.{published(name)}": p.detach().to(torch.float16).contiguous() for name, p in model.named_parameters()}
    save_file(weights, fresh / "model.safetensors", metadata={"format": "pt"})
    (fresh / "model.safetensors").chmod(0o644)
    tokenizer.save(str(fresh / "tokenizer.json"))
    config = hugging_face_config(model.shape, tokenizer)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    generation |= {"do_sample": True, "temperature": 0.4, "top_p": 0.9}
    files = {"config": config, "generation_config": generation, "tokenizer_config": tokenizer_config()}
    for name, content in files.items():
        (fresh / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (fresh / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    swap_in(fresh, out)


def swap_in(fresh: Path, out: Path) -> None:
    if out.exists():
        old = out.with_name(f"{out.name}.old-{os.getpid()}")
        out.rename(old)
        fresh.rename(out)
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
    else:
        fresh.rename(out)


def main() -> None:
    parser = argparse.ArgumentParser(description="train edge-llm's built-in chat model")
    parser.add_argument("--out", type=Path, required=True, help="the Hugging Face folder to write")
    parser.add_argument("--steps", type=int, default=Schedule.steps)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--experts", type=int, default=0, help="of every layer, of which a row goes to two; 0: none")
    parser.add_argument("--relu", action="store_true", help="ReLU in the gates, and a price on what passes them")
    parser.add_argument("--from", dest="dense", type=Path, help="the folder of a trained model to begin with")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    start = time.time()
    schedule = Schedule(steps=args.steps)
    if args.dense is not None:
        schedule = replace(schedule, warmup=args.steps // 10, tokens_per_step=2048, matrix_rate=0.005, vector_rate=0.001)
    shape = Shape.of_experts(args.experts) if args.experts else Shape(hidden_act="relu" if args.relu else "silu")
    model = Llama(shape)
    if args.dense is None:
        tokenizer = train_tokenizer(Shape.vocab_size)
    else:
        tokenizer = Tokenizer.from_file(str(args.dense / "tokenizer.json"))
        begin_as(model, args.dense)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, tokenizer after {time.time() - start:.0f} s")
    loss = train(model, tokenizer, schedule, args.seed)
    export(model, tokenizer, args.out)
    print(f"final loss {loss:.4f} after {time.time() - start:.0f} s, written to {args.out}")

    import evaluate

    evaluate.report(evaluate.ask_heldout(args.out))


if __name__ == "__main__":
    main()
