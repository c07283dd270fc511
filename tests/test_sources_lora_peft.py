"""LoRA merged by us and by peft itself: adapters that peft makes and saves, over tiny models of every family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_llm.errors import UnsupportedModel
from edge_llm.models.reference import FloatModel
from edge_llm.sources import open_source
from edge_llm.sources.lora_places import Wish, wish

peft = pytest.importorskip("peft", reason="peft is not installed")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TOKENS = list(range(3, 43))

ADAPTERS: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "its defaults": ("llama", False, {"r": 4}),
    "all seven": ("qwen3", False, {"r": 8, "lora_alpha": 16, "target_modules": LINEARS}),
    "all-linear": ("llama", False, {"r": 3, "lora_alpha": 5, "target_modules": "all-linear"}),
    "a pattern": ("mistral", False, {"r": 4, "target_modules": r".*\.layers\.\d+\.mlp\.up_proj"}),
    "a long pattern": ("llama", False, {"r": 4, "target_modules": r"(?:.*?(?:self_attn|mlp).*?(?:q_proj|up_proj).*?)"}),
    "rslora": ("llama", False, {"r": 9, "lora_alpha": 6, "use_rslora": True, "target_modules": LINEARS}),
    "ranks and alphas": (
        "llama",
        False,
        {
            "r": 4,
            "lora_alpha": 7,
            "target_modules": LINEARS,
            "rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.(up|down)_proj": 6, "^model.layers.0.mlp.gate_proj": 1},
            "alpha_pattern": {"model.layers.0.self_attn.v_proj": 32, "down_proj": 3},
        },
    ),
    "rslora with patterns": (
        "qwen2",
        False,
        {"r": 4, "use_rslora": True, "target_modules": LINEARS, "rank_pattern": {"o_proj": 9}, "alpha_pattern": {"q_proj": 2}},
    ),
    "layers": ("llama", False, {"r": 4, "target_modules": LINEARS, "layers_to_transform": [1]}),
    "one layer": ("llama", False, {"r": 4, "target_modules": LINEARS, "layers_to_transform": 0, "layers_pattern": "layers"}),
    "all but": ("llama", False, {"r": 4, "target_modules": LINEARS, "exclude_modules": ["layers.1.mlp.down_proj"]}),
    "all but a pattern": ("llama", False, {"r": 4, "target_modules": LINEARS, "exclude_modules": r".*\.1\..*"}),
    "fan_in_fan_out": ("llama", False, {"r": 4, "target_modules": LINEARS, "fan_in_fan_out": True}),
    "all biases": ("qwen2", False, {"r": 4, "target_modules": ["q_proj", "o_proj"], "bias": "all"}),
    "own biases": ("qwen2", False, {"r": 4, "target_modules": ["q_proj", "o_proj"], "bias": "lora_only"}),
    "whole tables": ("llama", False, {"r": 4, "target_modules": LINEARS, "modules_to_save": ["embed_tokens", "lm_head"]}),
    "whole norms": ("llama", False, {"r": 4, "target_modules": LINEARS, "modules_to_save": ["input_layernorm", "norm"]}),
    "head": ("llama", False, {"r": 4, "target_modules": ["q_proj", "lm_head"]}),
    "embedding": ("llama", False, {"r": 4, "target_modules": ["q_proj", "embed_tokens"]}),
    "dora": ("llama", False, {"r": 4, "target_modules": LINEARS, "use_dora": True}),
    "dora, rslora and embedding": (
        "qwen2",
        False,
        {"r": 4, "target_modules": [*LINEARS, "embed_tokens"], "use_dora": True, "use_rslora": True},
    ),
    "tied, linears": ("qwen2", True, {"r": 4, "target_modules": LINEARS}),
    "tied, whole tables": ("qwen2", True, {"r": 4, "target_modules": LINEARS, "modules_to_save": ["embed_tokens", "lm_head"]}),
    "tied, head": ("llama", True, {"r": 4, "target_modules": ["q_proj", "lm_head"]}),
    "tied, embedding": ("llama", True, {"r": 4, "target_modules": ["q_proj", "embed_tokens"]}),
    "tied, whole embedding": ("qwen2", True, {"r": 4, "target_modules": LINEARS, "modules_to_save": ["embed_tokens"]}),
    "tied and trained so": (
        "qwen2",
        True,
        {"r": 4, "target_modules": LINEARS, "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    ),
}


def base(folder: Path) -> Any:
    torch.set_num_threads(1)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def trained(model: Any, seed: int = 1) -> Any:
    """``model`` with other numbers in all that its adapter trains."""
    torch.manual_seed(seed)
    with torch.no_grad():
        done = set()
        for name, values in model.named_parameters():
            if values.requires_grad and id(values) not in done:
                done.add(id(values))
                moved = 0.05 * torch.randn_like(values)
                values.copy_(values * 1.1 + moved if "lora_magnitude" in name else values + moved)
    return model.eval()


def saved(folder: Path, target: Path, settings: dict[str, Any], seed: int = 1) -> Any:
    model = trained(peft.get_peft_model(base(folder), peft.LoraConfig(task_type="CAUSAL_LM", **settings)), seed)
    model.save_pretrained(target)
    return model


def theirs(model: Any) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = model(torch.tensor([TOKENS])).logits[0].numpy()
    return found


@pytest.mark.thorough(keep=6)
@pytest.mark.parametrize("name", ADAPTERS)
def test_the_merged_model_answers_as_peft_does(name: str, tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    family, tied, settings = ADAPTERS[name]
    folder = tiny_model(family, tie_word_embeddings=tied)
    model = saved(folder, tmp_path / "a", settings)
    with open_source(folder, lora=[Wish(str(tmp_path / "a"))]) as source:
        ours = FloatModel(source, source.config).forward(TOKENS)
        merged = {key: source.read(key) for key in source.names()}
    expected = theirs(model)
    assert np.abs(ours - expected).max() < 2e-5 * np.abs(expected).max()
    assert np.abs(expected - theirs(base(folder))).max() > 1e-2 * np.abs(expected).max(), "the adapter changes nothing"
    if not tied:  # peft changes both uses of a tied table when it merges, which is another model than was trained
        state = model.merge_and_unload(safe_merge=True).state_dict()
        assert merged.keys() == state.keys()
        for key, values in merged.items():
            np.testing.assert_allclose(values, state[key].numpy(), rtol=1e-5, atol=1e-6, err_msg=key)


def test_the_test_sees_a_wrong_scale(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_model("llama")
    model = saved(folder, tmp_path / "a", {"r": 4, "target_modules": LINEARS})
    with open_source(folder, lora=[wish(f"{tmp_path / 'a'}:0.9")]) as source:
        ours = FloatModel(source, source.config).forward(TOKENS)
    expected = theirs(model)
    assert np.abs(ours - expected).max() > 2e-3 * np.abs(expected).max()


@pytest.mark.parametrize("dora", [False, True])
def test_several_adapters_in_order(dora: bool, tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_model("llama")
    for index, targets in enumerate((["q_proj", "up_proj"], LINEARS)):
        saved(folder, tmp_path / str(index), {"r": 2 + index, "target_modules": targets, "use_dora": dora}, seed=index)
    model = peft.PeftModel.from_pretrained(base(folder), tmp_path / "0", adapter_name="0")
    model.load_adapter(tmp_path / "1", adapter_name="1")
    state = model.merge_and_unload(adapter_names=["0", "1"], safe_merge=True).state_dict()
    with open_source(folder, lora=[Wish(str(tmp_path / str(index))) for index in range(2)]) as source:
        for key in source.names():
            np.testing.assert_allclose(source.read(key), state[key].numpy(), rtol=2e-5, atol=2e-6, err_msg=key)


def test_a_scale_is_what_peft_sets(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_model("llama")
    model = saved(folder, tmp_path / "a", {"r": 4, "target_modules": LINEARS})
    for module in model.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.scale_layer(0.3)
    with open_source(folder, lora=[wish(f"{tmp_path / 'a'}:0.3")]) as source:
        ours = FloatModel(source, source.config).forward(TOKENS)
    expected = theirs(model)
    assert np.abs(ours - expected).max() < 2e-5 * np.abs(expected).max()


def test_a_model_without_its_head_was_trained(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_model("llama")
    body = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    model = trained(peft.get_peft_model(body, peft.LoraConfig(r=4, target_modules=LINEARS, lora_alpha=9)))
    model.save_pretrained(tmp_path / "a")
    state = model.merge_and_unload().state_dict()
    with open_source(folder, lora=[Wish(str(tmp_path / "a"))]) as source:
        for key in source.names():
            values = source.read(key)
            if key != "lm_head.weight":
                np.testing.assert_allclose(values, state[key.removeprefix("model.")].numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("start", ["pissa", "olora", "gaussian", "orthogonal"])
def test_how_an_adapter_began_is_seen(start: str, tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_model("llama")
    model = saved(folder, tmp_path / "a", {"r": 4, "target_modules": ["q_proj"], "init_lora_weights": start})
    if start in ("pissa", "olora"):
        with pytest.raises(UnsupportedModel, match=f"was begun as `{start}`, which changes the model's own weights"):
            open_source(folder, lora=[Wish(str(tmp_path / "a"))])
        return
    with open_source(folder, lora=[Wish(str(tmp_path / "a"))]) as source:
        ours = FloatModel(source, source.config).forward(TOKENS)
    assert np.abs(ours - theirs(model)).max() < 2e-5 * np.abs(ours).max()
