#!/usr/bin/env python3
"""Writes configs.json: many forms of config.json, and what each of them means to Hugging Face transformers.

Draws the keys of each form at random, as absent, null or a value, reads the form with transformers' own classes, and
builds the model. What a form means is read from the model: from the shapes of its weights, the frequencies of its
rotary embedding, and the keys that the last query of a row sees in each layer. Forms that transformers refuses, and
forms on which its parts disagree, are left out.
"""
import argparse
import collections
import json
import logging
import pathlib
import random
import tempfile

import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
TOKENS = 24
ABSENT = object()


def pick(generator, form, key, *values):
    """Sets a key to one of the values, or leaves it out."""
    value = generator.choice(values)
    if value is not ABSENT:
        form[key] = value


def rope_settings(generator, names_theta):
    """Settings of one rotary embedding. Returns the dictionary."""
    kind = generator.choice(["default", "linear", "dynamic", "yarn", "yarn", "yarn", "llama3", "llama3"])
    rope = {}
    names = generator.choice([["rope_type"], ["type"], ["rope_type", "type"]])
    for name in names:
        rope[name] = kind
    if names_theta:
        pick(generator, rope, "rope_theta", ABSENT, 500.0, 1000000)
    if kind == "default":
        return rope
    rope["factor"] = generator.choice([2.0, 4, 8.0])
    if kind in ("yarn", "llama3", "dynamic"):
        pick(generator, rope, "original_max_position_embeddings", ABSENT, 16, 32)
    if kind == "llama3":
        rope.update(low_freq_factor=generator.choice([1.0, 1]), high_freq_factor=generator.choice([4.0, 2]))
    if kind == "yarn":
        pick(generator, rope, "factor", 2.0, 4, 8.0, None)
        pick(generator, rope, "attention_factor", ABSENT, ABSENT, None, 1.25)
        pick(generator, rope, "beta_fast", ABSENT, ABSENT, None, 4.0, 16)
        pick(generator, rope, "beta_slow", ABSENT, ABSENT, None, 2)
        pick(generator, rope, "mscale", ABSENT, ABSENT, 0.7, 0, None)
        pick(generator, rope, "mscale_all_dim", ABSENT, 0.4, 0, None)
        pick(generator, rope, "truncate", ABSENT, ABSENT, True, False, None)
    return rope


def add_rope(generator, form):
    pick(generator, form, "rope_theta", ABSENT, ABSENT, 5000.0, 20000)
    pick(generator, form, "rope_scaling", ABSENT, ABSENT, None, {}, rope_settings(generator, False))
    pick(generator, form, "rope_parameters", ABSENT, ABSENT, None, {}, rope_settings(generator, True))
    pick(generator, form, "original_max_position_embeddings", ABSENT, ABSENT, 16, 48)


def add_window(generator, form):
    family, layers = form["model_type"], form["num_hidden_layers"]
    pick(generator, form, "sliding_window", ABSENT, None, 5, 9, 4096)
    if family in ("llama", "mistral"):
        return
    pick(generator, form, "use_sliding_window", ABSENT, False, True, True, True)
    if family == "smollm3":
        pick(generator, form, "no_rope_layers", ABSENT, None, [generator.randrange(2) for _ in range(layers)],
             [0] * layers, [1] * (layers + 2))
        pick(generator, form, "no_rope_layer_interval", ABSENT, 1, 2, 3)
    else:
        pick(generator, form, "max_window_layers", ABSENT, 0, 0, 1, layers, 28)
    pick(generator, form, "layer_types", ABSENT, ABSENT, None, ["full_attention"] * layers, ["sliding_attention"] * layers,
         ["sliding_attention"] * (layers - 1) + ["full_attention"])


def draw(generator):
    """One form of config.json. It always has the sizes that atoll requires."""
    family = generator.choice(["mistral", "llama", "qwen2", "qwen2", "qwen3", "smollm3"])
    form = {"model_type": family, "vocab_size": 32, "hidden_size": generator.choice([32, 64]), "num_attention_heads": 8,
            "intermediate_size": 24, "num_hidden_layers": generator.randint(1, 3)}
    # Key-value heads are always set where their default is 32 (qwen2, qwen3), which fits no model of 8 heads.
    needs_heads = ["num_key_value_heads"] if family in ("qwen2", "qwen3") else []
    pick(generator, form, "num_key_value_heads", *([] if needs_heads else [ABSENT]), None, 2, 8)
    pick(generator, form, "head_dim", ABSENT, ABSENT, None, 6, 10)
    pick(generator, form, "max_position_embeddings", ABSENT, 64, 128)
    pick(generator, form, "rms_norm_eps", ABSENT, 1e-5)
    pick(generator, form, "hidden_act", ABSENT, "silu", "swish")
    for key in ("tie_word_embeddings", "attention_bias", "mlp_bias"):
        pick(generator, form, key, ABSENT, False, True)
    add_rope(generator, form)
    add_window(generator, form)
    if family == "smollm3":
        form.update(pad_token_id=None, bos_token_id=None, eos_token_id=None)
    return form


def build(form):
    """The config and the model of a form, read from a file as those of users are."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(form))
        config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    return config, model.eval()


def window_of(config, layer, seen):
    """The window of a layer, None for none. `seen` is the number of keys that the last query sees."""
    attention = layer.self_attn
    if config.model_type == "llama":
        told = None
    elif config.model_type == "mistral":
        told = config.sliding_window
    else:
        told = attention.sliding_window
        is_sliding = config.layer_types[attention.layer_idx] == "sliding_attention"  # selects the mask
        assert is_sliding == (told is not None), "mask and attention disagree"
    assert seen == (TOKENS if told is None else min(told, TOKENS)), "mask and attention disagree"
    return told


def meaning(form):
    config, model = build(form)
    layers = model.model.layers
    first, rotary = layers[0], model.model.rotary_emb
    frequencies = [float(f"{f:.7g}") for f in rotary.inv_freq.tolist()]  # before a long row changes those of "dynamic"
    scale = float(rotary.attention_scaling)
    with torch.no_grad():
        seen = [int((a[0, 0, -1] > 0).sum()) for a in
                model(torch.arange(TOKENS)[None] % 32, output_attentions=True, use_cache=False).attentions]
    attention, mlp = first.self_attn, first.mlp
    vocabulary, hidden = model.model.embed_tokens.weight.shape
    return {
        "layers": len(layers), "hidden": hidden, "vocab": vocabulary, "ffn": mlp.up_proj.weight.shape[0],
        "head_dim": attention.head_dim, "heads": attention.q_proj.weight.shape[0] // attention.head_dim,
        "kv_heads": attention.k_proj.weight.shape[0] // attention.head_dim, "max_seq": config.max_position_embeddings,
        "rms_eps": first.input_layernorm.variance_epsilon, "tied": model.lm_head.weight is model.model.embed_tokens.weight,
        "qkv_bias": attention.q_proj.bias is not None, "o_bias": attention.o_proj.bias is not None,
        "mlp_bias": mlp.up_proj.bias is not None, "qk_norm": hasattr(attention, "q_norm"),
        "rotated": [bool(getattr(layer.self_attn, "use_rope", True)) for layer in layers],
        "frequencies": frequencies, "rope_scale": scale,
        "windows": [window_of(config, layer, keys) for layer, keys in zip(layers, seen, strict=True)]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "configs.json", help="file to write (default: %(default)s)")
    parser.add_argument("--forms", type=int, default=300, help="number of forms (default: %(default)s)")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.manual_seed(1)
    generator, lines, left_out = random.Random(1), [], collections.Counter()
    while len(lines) < arguments.forms:
        form = draw(generator)
        try:
            means = meaning(form)
        except Exception as reason:  # transformers fails in many ways
            left_out[f"{form['model_type']}: {type(reason).__name__}: {str(reason).splitlines()[0][:80]}"] += 1
            continue
        lines.append(json.dumps({"config": form, "means": means}, separators=(",", ":")))
    head = json.dumps({"torch": torch.__version__, "transformers": transformers.__version__})
    arguments.out.write_text(f'{{"versions": {head},\n"forms": [\n' + ",\n".join(lines) + "\n]}\n")
    print(f"{len(lines)} forms; left out:", *(f"{n} x {reason}" for reason, n in left_out.most_common()), sep="\n  ")


if __name__ == "__main__":
    main()
