#!/usr/bin/env python3
"""Writes the golden files of this folder from Hugging Face transformers and sentencepiece.

One safetensors file per small model, computed in f32 on the CPU, and tokenizer.json. README.md
describes the contents. This script asserts the conventions that README.md states.
"""
import argparse
import hashlib
import json
import pathlib
import platform

import safetensors.torch
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
IGNORED = -100
MISTRAL = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
           "head_dim", "vocab_size", "sliding_window", "rms_norm_eps", "rope_theta", "tie_word_embeddings",
           "max_position_embeddings")


def mistral(*values):
    return {"model_type": "mistral", **dict(zip(MISTRAL, values, strict=True))}


def small(model_type, **others):
    """A config.json of 4 heads on 2 key-value heads."""
    return {"model_type": model_type, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 67, "rms_norm_eps": 1e-5,
            "rope_theta": 1e4, "tie_word_embeddings": False, "max_position_embeddings": 64, **others}


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}

# Maps the name of each model to its config.json, the tokens per row T, and one pair (prompt, length) for each
# row. Labels are ignored before `prompt` and from `length` on, where padding has id 0. The pair (T, T) gives a
# row without a valid label.
MODELS = {
    "gqa_untied": (mistral(48, 80, 2, 4, 2, 16, 101, None, 1e-5, 1e4, False, 64), 24, [(5, 24), (9, 17), (0, 24)]),
    "window_untied": (mistral(40, 72, 2, 6, 2, 8, 97, 7, 1e-5, 1e4, False, 64), 24, [(0, 24), (11, 24), (3, 14)]),
    "window_tied": (mistral(64, 96, 2, 4, 1, 16, 89, 5, 1e-6, 1e6, True, 64), 19, [(4, 19), (2, 12), (19, 19)]),
    "llama_scaled": (small("llama", head_dim=16, tie_word_embeddings=True, rope_scaling=LLAMA3), 24, [(3, 24), (8, 20)]),
    "llama_biased": (small("llama", head_dim=10, attention_bias=True, mlp_bias=True,
                           rope_scaling={"rope_type": "linear", "factor": 4.0}), 21, [(0, 21), (6, 15)]),
    "qwen2": (small("qwen2"), 24, [(4, 24), (2, 18)]),
    "qwen2_yarn": (small("qwen2", hidden_size=64, rope_scaling=YARN), 24, [(0, 24), (7, 24)]),
    "qwen3": (small("qwen3", head_dim=16), 24, [(5, 24), (0, 13)]),
    "qwen3_biased": (small("qwen3", head_dim=12, attention_bias=True, tie_word_embeddings=True,
                           rope_scaling=YARN | {"mscale": 0.7, "mscale_all_dim": 0.4, "truncate": False,
                                                "beta_fast": 4.0}), 20, [(1, 20), (9, 19)]),
    "smollm3": (small("smollm3", num_hidden_layers=5, tie_word_embeddings=True, no_rope_layer_interval=4,
                      rope_scaling={"rope_type": "dynamic", "factor": 2.0}), 24, [(2, 24), (6, 11)]),
    "smollm3_listed": (small("smollm3", num_hidden_layers=3, no_rope_layers=[0, 1, 0]), 18, [(0, 18), (5, 16)]),
    "qwen2_tied": (small("qwen2", head_dim=10, tie_word_embeddings=True), 21, [(3, 21), (0, 17)]),
}

# Maps the name of each model with adapters (LoRA) to the values of MODELS, then rank, alpha and targets.
ADAPTED = {
    "llama_adapters": (small("llama", head_dim=12, attention_bias=True), 22, [(2, 22), (7, 16)],
                       (3, 6.0, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])),
    "qwen3_adapters": (small("qwen3", head_dim=16), 20, [(0, 20), (4, 20)], (4, 2.0, ["v_proj", "q_proj", "down_proj"])),
}

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "a", " a", "a ", "  a", "Hello", " Hello", "Hello, world!",
    "The quick brown fox jumps over the lazy dog.", "   three leading spaces", "two  inner   gaps", "trailing   ",
    "line one\nline two\n", "\tif (x == 1) {\n\t\treturn x->y[0];\n\t}\r\n", "snake_case camelCase kebab-case",
    "### Instruction:\nName three colors.\n\n### Response:\n1. Red\n2. Blue", "<s>[INST] hi [/INST]</s><unk>", "<0x41>",
    "0", "1234567890", "3.14159 -2.5e-10 1,000,000", "it's don't we'll I'd", "https://example.org/a?b=c&d=%20#e",
    "café naïve Über straße łódź", "cafe\u0301", "\ufb01 \uff21\uff22 ½", "你好\uff0c世界", "こんにちは 東京", "안녕하세요",
    "Привет, мир", "مرحبا", "नमस्ते", "😀🚀", "👨\u200d👩\u200d👧 🇫🇷", "\U00013080\U00013081", "\u2581", "a\u2581b",
    "a\u00a0b\u3000c\u200bd\ufeffe", "\x01\x7f\u0080", "x" * 150, "Pneumonoultramicroscopicsilicovolcanoconiosis" * 4,
]


def batch(tokens, rows, vocabulary, generator):
    """Returns input_ids, unshifted labels, and shifted labels, of which [b, t] is the target of position t."""
    ids = torch.randint(1, vocabulary, (len(rows), tokens), generator=generator)
    labels = ids.clone()
    for row, (prompt, length) in enumerate(rows):
        ids[row, length:] = 0
        labels[row, :prompt] = labels[row, length:] = IGNORED
    labels[0, tokens // 2 : tokens // 2 + 2] = IGNORED  # ignored labels between valid ones
    return ids, labels, torch.cat([labels[:, 1:], torch.full((len(rows), 1), IGNORED)], dim=1)


def build(config, attention, generator=None, weights=None):
    """Builds the model with `weights`, by default random."""
    config = transformers.AutoConfig.for_model(**config, pad_token_id=None, bos_token_id=None, eos_token_id=None)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():  # named_parameters() omits a tied head
            # A standard deviation of 0.15 gives scores and logits of order one, so that no gradient is degenerate.
            p.copy_(weights[name] if weights else 0.15 * torch.randn(p.shape, generator=generator) + ("norm" in name))
    return model


def build_adapted(config, adapters, generator):
    """Builds a model with random adapters; only these have gradients."""
    import peft
    rank, alpha, targets = adapters
    model = build(config, "eager", generator)
    lora = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, lora)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.copy_(0.1 * torch.randn(p.shape, generator=generator))
    return model


def name_without_peft(name):
    """Returns the name of a parameter in files: that of the model, without the wrappers of peft."""
    return name.removeprefix("base_model.model.").replace(".base_layer", "").replace(".default", "")


def golden_adapted(seed, config, tokens, rows, adapters):
    """Computes the tensors of one file of a model with adapters."""
    model = build_adapted(config, adapters, generator := torch.Generator().manual_seed(seed))
    ids, labels, shifted = batch(tokens, rows, config["vocab_size"], generator)
    out = model(input_ids=ids, labels=labels, use_cache=False)
    out.loss.backward()
    named = {name_without_peft(name): p for name, p in model.named_parameters()}
    gradients = {name: p.grad for name, p in named.items() if p.requires_grad}
    assert all("lora_" in name and g.norm() > 1e-3 for name, g in gradients.items())
    print(f"loss {out.loss.item():.6f}, {len(gradients)} gradients")
    return {**{name: p.detach().clone() for name, p in named.items()}, "input_ids": ids, "labels": shifted,
            "logits": out.logits.detach(), "loss": out.loss.detach().reshape(1),
            **{"grad." + n: g for n, g in gradients.items()}}


def check_window(config, out, ids, weights):
    """Asserts that query i sees exactly the keys j with i - window < j <= i, in every layer, row and head."""
    tokens = ids.shape[1]
    window = config.get("sliding_window")
    i, j = torch.arange(tokens)[:, None], torch.arange(tokens)[None, :]
    seen = (j <= i) & (j > i - (window or tokens))
    assert len(out.attentions) == config["num_hidden_layers"]
    assert all(torch.equal(a > 0, seen.expand_as(a)) for a in out.attentions)
    if config["model_type"] != "mistral":
        return
    # The window changes logits. A model without a window and one with a window of the whole sequence are equal.
    full, long = (build({**config, "sliding_window": other}, "eager", weights=weights)(input_ids=ids).logits
                  for other in (None, tokens))
    effect = (full - out.logits).abs().max().item()
    assert torch.equal(full, long) and (effect > 0.1 if window else effect == 0)


def check_effects(config, out, ids, weights):
    """Asserts that each special feature of a family changes logits, so that a test without it would fail."""
    def effect(**change):
        other = build({**config, **change}, "eager", weights=weights)
        return (other(input_ids=ids).logits - out.logits).abs().max().item()

    scaling = config.get("rope_scaling", {"rope_type": "dynamic"})  # dynamic changes only longer rows
    assert scaling["rope_type"] == "dynamic" or effect(rope_scaling=None) > 0.01
    if config["model_type"] == "smollm3":
        assert effect(no_rope_layers=[1] * config["num_hidden_layers"]) > 0.01


def golden(seed, config, tokens, rows):
    """Computes the tensors of one file."""
    model = build(config, "eager", generator := torch.Generator().manual_seed(seed))
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    ids, labels, shifted = batch(tokens, rows, config["vocab_size"], generator)
    out = model(input_ids=ids, labels=labels, output_attentions=True, use_cache=False)
    out.loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert all(g.norm() > 1e-3 for g in gradients.values())

    # The loss is the mean over valid tokens, and transformers shifts `labels` in the same way as batch() does.
    logp = out.logits.log_softmax(-1).gather(-1, shifted.clamp(min=0)[..., None])[..., 0]
    torch.testing.assert_close(out.loss, -logp[shifted != IGNORED].mean())
    check_window(config, out, ids, weights)
    check_effects(config, out, ids, weights)

    # The attention implementation `sdpa` gives the same logits and gradients as `eager`, except for rounding.
    sdpa = build(config, "sdpa", weights=weights)
    check = sdpa(input_ids=ids, labels=labels, use_cache=False)
    check.loss.backward()
    off = (check.logits - out.logits).abs().max().item()
    off_g = max(((p.grad - gradients[n]).norm() / gradients[n].norm()).item() for n, p in sdpa.named_parameters())
    assert off < 2e-5 and off_g < 1e-5
    print(f"loss {out.loss.item():.6f}, sdpa moves logits by {off:.1e}, gradients by {off_g:.1e}")
    return {**weights, "input_ids": ids, "labels": shifted, "logits": out.logits.detach(),
            "loss": out.loss.detach().reshape(1), **{"grad." + n: g for n, g in gradients.items()}}


def serialize(tensors, metadata):
    """Serializes with sorted metadata, which the library would write in random order."""
    data = safetensors.torch.save(tensors, metadata)
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end]) | {"__metadata__": dict(sorted(metadata.items()))}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[end:]


def tokenizer_cases(model):
    """Encodes TEXTS without BOS and EOS, one case per line."""
    import sentencepiece
    data = model.read_bytes()
    encode = sentencepiece.SentencePieceProcessor(model_proto=data).encode
    cases = ",\n".join("  " + json.dumps({"text": text, "ids": encode(text)}) for text in TEXTS)
    head = f' "sentencepiece": "{sentencepiece.__version__}",\n "model_sha256": "{hashlib.sha256(data).hexdigest()}",'
    return f'{{\n{head}\n "cases": [\n{cases}\n ]\n}}\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=HERE, help="folder to write to (default: this one)")
    parser.add_argument("--tokenizer", type=pathlib.Path, help="sentencepiece model of Mistral 7B v0.1",
                        default=HERE.parents[1] / "../shared/data/mistral-7b-v0.1.tokenizer.model")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    for seed, (name, (config, tokens, rows)) in enumerate(MODELS.items(), start=1):
        print(f"{name}: ", end="")
        metadata = {"config": json.dumps(config)} | versions
        (arguments.out / f"{name}.safetensors").write_bytes(serialize(golden(seed, config, tokens, rows), metadata))
    for seed, (name, (config, tokens, rows, adapters)) in enumerate(ADAPTED.items(), start=101):
        print(f"{name}: ", end="")
        metadata = {"config": json.dumps(config),
                    "adapters": json.dumps(dict(zip(("rank", "alpha", "targets"), adapters, strict=True)))} | versions
        tensors = golden_adapted(seed, config, tokens, rows, adapters)
        (arguments.out / f"{name}.safetensors").write_bytes(serialize(tensors, metadata))
    versions |= {"safetensors": safetensors.__version__, "python": platform.python_version()}
    (arguments.out / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")
    try:
        (arguments.out / "tokenizer.json").write_text(tokenizer_cases(arguments.tokenizer))
    except (ImportError, OSError) as reason:
        print(f"tokenizer.json: skipped: {reason}")


if __name__ == "__main__":
    main()
