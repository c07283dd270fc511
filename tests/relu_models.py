"""Small models with ReLU of which few neurons are active, as trained ones are: a ReLU Llama and an OPT."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import COMMON
from model_files import write_tokenizer

SIZES = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
KINDS = {
    "opt": ("OPT", {"ffn_dim": 1500, "word_embed_proj_dim": 192, "max_position_embeddings": 128}),
    "llama": ("Llama", {"intermediate_size": 1500, "hidden_act": "relu"}),
}


def relu_folder(folder: Path, name: str, **settings: int) -> Path:
    """A Hugging Face folder of a random model of `KINDS` whose layers have many neurons, of which a row activates few."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.set_num_threads(1)
    kind, more = KINDS[name]
    config = getattr(transformers, f"{kind}Config")(**COMMON | SIZES | more | settings)
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor, values in model.named_parameters():
            drawn = torch.randn(values.shape, generator=random)
            if tensor.endswith("fc1.bias"):
                values.copy_(0.3 * drawn - 2.5)
            elif "norm" in tensor:
                values.add_(0.1 * drawn)
            elif "gate_proj" in tensor:  # the mean of what it reads makes most gates negative
                values.copy_(drawn / values.shape[-1] ** 0.5)
                values[:, 0] -= 2.0
            else:
                values.copy_(drawn * (0.5 if "embed" in tensor or tensor.endswith("bias") else 1 / values.shape[-1] ** 0.5))
            if "embed_tokens" in tensor:
                values[:, 0] = 1.5
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder
