"""What a config.json means where it says less, null, or the same in another way: as transformers takes it, or refused."""

import json

import numpy as np
import pytest
from families import TOKENS, family_folder, logits_of

from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.models import load_config
from edge_llm.models.reference import FloatModel

SHORT, LONG = [1.0 + 0.1 * wave for wave in range(8)], [2.0 + 0.3 * wave for wave in range(8)]
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": SHORT, "long_factor": LONG}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
SAME = [
    ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    ("gemma2", {"rope_parameters": HALF}),
    ("glm4", {"attention_bias": ...}),
    ("exaone4", {"sliding_window": ...}),
    ("exaone4", {"attention_bias": True}),
    ("smollm3", {"layer_types": ["sliding_attention"] * 5, "sliding_window": 7}),
    ("smollm3", {"layer_types": ..., "use_sliding_window": True, "sliding_window": 7}),
    ("gemma3_text", {"hidden_activation": ..., "hidden_act": "relu"}),
    ("opt", {"activation_function": "gelu_new"}),
    ("ministral3", {"rope_parameters": ...}),
    ("ministral3", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
                                        "llama_4_scaling_beta": 0.1}}),
    ("granite", {"rope_parameters": HALF}),
    ("granite", {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 3e4}}),
    ("granite", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32}),
    ("granite", {"rope_parameters": {**LONGROPE, "original_max_position_embeddings": 32, "factor": 3.0}}),
    ("phi3", {"original_max_position_embeddings": ..., "rope_parameters": {**LONGROPE, "original_max_position_embeddings": 9}}),
    ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32}),
    ("llama, yarn", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    ("llama, yarn", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}}),
    ("llama, yarn", {"rope_parameters": ..., "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}}),
    ("llama, yarn", {"rope_parameters": ..., "rope_scaling": {**YARN, "factor": 2}}),
    ("llama, yarn", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "attention_factor": 1.3}}),
    ("llama, yarn", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32}),
    ("qwen3_5_text", {"rope_parameters": ...}),
    ("granitemoehybrid", {"time_step_limit": ...}),
    ("granitemoehybrid", {"layer_types": ["mamba", "attention", "mamba", "mamba"], "mamba_d_head": "auto"}),
]  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(name):
        if name not in made:
            made[name], _ = family_folder(tmp_path_factory.mktemp("configs") / "model", name)
        return made[name]

    return folder


def changed(folder, changes):
    """The config.json of ``folder`` with other values; ``...`` leaves a key out."""
    raw = json.loads((folder / "config.json").read_text()) | changes
    return {key: value for key, value in raw.items() if value is not ...}


@pytest.mark.parametrize(("family", "changes"), SAME, ids=str)
def test_a_config_means_what_it_means_to_transformers(folders, family, changes):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    folder = folders(family)
    raw, kept = changed(folder, changes), (folder / "config.json").read_text()
    (folder / "config.json").write_text(json.dumps(raw))
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        with open_model_folder(folder) as source:
            ours = FloatModel(source, load_config(raw)).forward(TOKENS)
    finally:
        (folder / "config.json").write_text(kept)
    theirs = logits_of(model.eval(), TOKENS)
    assert np.abs(ours - theirs).max() < 5e-5 * np.abs(theirs).max()


def test_yarn_reaches_as_far_as_it_stretches(folders):
    """As people extend Qwen2.5: the longest text in config.json is that of the first context."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    short, linear = {**yarn, "original_max_position_embeddings": 32}, {**yarn, "rope_type": "linear"}
    for rope, longest in ((yarn, 1024), (short, 256), (linear, 256)):
        assert load_config(changed(folders("llama, yarn"), {"rope_parameters": rope, "rope_theta": 1e4})).context == longest


@pytest.mark.parametrize(
    ("family", "changes", "error", "what"),
    [
        ("gemma2", {"use_bidirectional_attention": True}, UnsupportedModel, "use_bidirectional_attention"),
        *(("granite", {"hidden_act": odd}, UnsupportedModel, "activation") for odd in (["silu"], {}, "mish")),
        ("phi3", {"rope_parameters": {**LONGROPE, "short_factor": SHORT[:3]}}, InvalidModel, "divisors"),
        ("phi3", {"rope_parameters": {**LONGROPE, "short_factor": SHORT[:3], "long_factor": LONG[:3]}}, InvalidModel, "waves"),
        ("phi3", {"rope_parameters": {**LONGROPE, "short_factor": [5e-324] * 8}}, InvalidModel, "short_factor"),
        ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 1}, InvalidModel, "longrope"),
        *(("phi3", {"rope_parameters": {"rope_type": odd, "rope_theta": 1e4}}, UnsupportedModel, "type") for odd in ([], {})),
        ("granite", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1.0}}, InvalidModel, "yarn"),
        ("granite", {"rope_parameters": {"rope_type": "default", "rope_theta": 3e4}, "rope_theta": 1e4}, InvalidModel, "two"),
        *(("opt", {key: False}, UnsupportedModel, key) for key in ("do_layer_norm_before", "enable_bias")),
        ("opt", {"_remove_final_layer_norm": True}, UnsupportedModel, "_remove_final_layer_norm"),
        ("opt", {"word_embed_proj_dim": 32}, UnsupportedModel, "word_embed_proj_dim"),
        ("opt", {"activation_function": "mish"}, UnsupportedModel, "`mish`"),
        ("opt", {"ffn_dim": ...}, InvalidModel, "lacks `ffn_dim`"),
        ("qwen3_5_text", {"linear_value_head_dim": 24}, UnsupportedModel, "multiples of 16"),
        ("qwen3_5_text", {"linear_key_head_dim": 512}, InvalidModel, "linear_key_head_dim"),
        ("qwen3_5_text", {"linear_num_value_heads": 3}, InvalidModel, "no multiple"),
        ("qwen3_5_text", {"attn_output_gate": False}, UnsupportedModel, "attn_output_gate"),
        ("qwen3_5_text", {"layer_types": ["linear_attention"] * 4}, UnsupportedModel, "without `full_attention`"),
        ("qwen3_5_text", {"layer_types": ["sliding_attention"] * 4}, UnsupportedModel, "layer type"),
        *(("qwen3_5_text", {"layer_types": odd}, InvalidModel, "layer_types") for odd in (["full_attention"], "all", [1] * 4)),
        ("granitemoehybrid", {"mamba_n_heads": 3}, InvalidModel, "mamba_n_heads"),
        ("granitemoehybrid", {"mamba_n_heads": 16, "mamba_d_head": 8}, UnsupportedModel, "mamba_d_head"),
        ("granitemoehybrid", {"position_embedding_type": "alibi"}, UnsupportedModel, "position_embedding_type"),
        *(("granitemoehybrid", {"time_step_limit": odd}, InvalidModel, "step_limit") for odd in ([2, 1], [1], "x", [{}, 1])),
    ],
    ids=str,
)  # fmt: skip
def test_an_odd_config_is_refused_in_a_line(folders, family, changes, error, what):
    with pytest.raises(error, match=what) as refused:
        load_config(changed(folders(family), changes))
    assert "\n" not in str(refused.value)
