#!/usr/bin/env python3
"""Opens exports of atoll-train with transformers and peft, and compares their losses.

  tests/train/hf_export.py ATOLL_TRAIN

For each family: exports a trained model, reads it again and writes it (--steps 0): every tensor keeps its bytes,
in f32 and bf16. Then models that transformers saves, with tied heads, biases, scaled and absent rope: a step with
learning rate 0 has the loss that transformers computes, both from the model and from atoll's export of it. Then
trains adapters, and compares the loss of the base model with the adapters by peft with that of the merged
export. The tokenizer of an export puts bos before a text.
Needs the Python packages torch, transformers, safetensors and peft in ATOLL_TEST_PYTHON or this Python;
without them it exits with 77.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

if "ATOLL_TEST_PYTHON" in os.environ and os.environ["ATOLL_TEST_PYTHON"] != sys.executable:
    os.execv(os.environ["ATOLL_TEST_PYTHON"], [os.environ["ATOLL_TEST_PYTHON"], *sys.argv])
try:
    import peft
    import safetensors.torch
    import torch
    import transformers
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

FAMILIES = ("mistral-tiny", "llama-tiny", "qwen2.5-tiny", "qwen3-tiny", "smollm3-tiny")
TRAIN = sys.argv[1]


def train(folder, *flags):
    data = [] if "--data" in flags else ["--data", "synthetic:copy"]
    command = [TRAIN, *data, "--global-batch", "4", "--threads", "1", "--no-checkpoint",
               "--peak-seconds", "0.05", "--quiet", "--out", folder, *flags]
    subprocess.run([str(part) for part in command], check=True, stderr=subprocess.DEVNULL, timeout=120)
    metrics = folder / "metrics.json"
    return json.loads(metrics.read_text()) if metrics.exists() else None


def ids_of(vocabulary):
    return torch.randint(1, vocabulary, (2, 24), generator=torch.Generator().manual_seed(1))


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


def near(a, b, what):
    off = ((a - b).norm() / b.norm()).item()
    print(f"{what}: relative difference {off:.1e}")
    assert off < 1e-4, what


def tensors(folder):
    return safetensors.torch.load_file(folder / "model.safetensors")


def check_family(root, name):
    first, again = root / f"{name}-a", root / f"{name}-b"
    train(root / "run", "--model", name, "--steps", 2, "--export", first)
    model = transformers.AutoModelForCausalLM.from_pretrained(first, dtype=torch.float32)
    missing = set(tensors(first)) - set(model.state_dict())
    assert not missing, missing
    config = json.loads((first / "config.json").read_text())
    (first / "config.json").write_text(json.dumps(config | {"bos_token_id": 5, "eos_token_id": [6, 7]}))
    # Import, no step and export give the same bytes.
    train(root / "run2", "--model", first, "--steps", 0, "--export", again)
    config = transformers.AutoConfig.from_pretrained(again)
    assert config.bos_token_id == 5 and config.eos_token_id == [6, 7]
    before, after = tensors(first), tensors(again)
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    # What transformers saves, atoll-train reads: an export of it has the same weights.
    model.save_pretrained(root / f"{name}-hf")
    train(root / "run3", "--model", root / f"{name}-hf", "--steps", 0, "--export", root / f"{name}-c")
    after = tensors(root / f"{name}-c")
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    # The same holds for a bf16 model.
    model.to(torch.bfloat16).save_pretrained(root / f"{name}-bf16")
    train(root / "run4", "--model", root / f"{name}-bf16", "--dtype", "bf16", "--steps", 0, "--export", root / f"{name}-d")
    before, after = tensors(root / f"{name}-bf16"), tensors(root / f"{name}-d")
    assert before.keys() == after.keys()
    assert all(after[key].dtype == torch.bfloat16 and torch.equal(before[key], after[key]) for key in before)
    print(f"{name}: transformers opens the export, and {len(before)} tensors survive both ways")
    return first


def small(model_type, **others):
    return {"model_type": model_type, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 101, "max_position_embeddings": 64,
            "tie_word_embeddings": False, **others}


# Models whose config.json has more than the presets of the families.
SPECIAL = {
    "llama-scaled": small("llama", attention_bias=True, mlp_bias=True, rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}),
    "qwen2-tied": small("qwen2", tie_word_embeddings=True),
    "qwen3-yarn": small("qwen3", head_dim=12, rope_scaling={
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
    "smollm3-listed": small("smollm3", num_hidden_layers=3, no_rope_layers=[0, 1, 0]),
    "mistral-window": small("mistral", sliding_window=7),
}
SEQ, ROWS = 32, 4


def loss_by_transformers(folder, tokens):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = torch.tensor([tokens[row * SEQ : row * SEQ + SEQ + 1] for row in range(ROWS)])
    targets = rows[:, 1:].reshape(-1)
    return torch.nn.functional.cross_entropy(logits(model, rows[:, :-1]).flatten(0, 1), targets).item()


def check_loss(root, name, config):
    """The loss of an imported model, and of its export, is that of transformers."""
    given, exported = root / name, root / f"{name}-export"
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config, pad_token_id=None, bos_token_id=None, eos_token_id=None))
    with torch.no_grad():
        for key, value in model.named_parameters():  # large enough that scores and biases matter
            value.copy_(0.2 * torch.randn(value.shape) + ("norm" in key))
    model.to(torch.float32).save_pretrained(given)
    tokens = torch.randint(3, config["vocab_size"], (ROWS * SEQ + 1,)).tolist()
    (root / "ids").write_bytes(b"".join(token.to_bytes(2, "little") for token in tokens))
    metrics = train(root / f"{name}-run", "--model", given, "--data", f"raw:{root / 'ids'}", "--data-type", "uint16",
                    "--tokenizer", "ids:101", "--seq", SEQ, "--steps", 1, "--lr", 0, "--warmup-steps", 0,
                    "--weight-decay", 0, "--export", exported)
    loss = loss_by_transformers(given, tokens)
    print(f"{name}: loss {metrics['loss_first']:.6f}, by transformers {loss:.6f}")
    assert abs(metrics["loss_first"] - loss) < 1e-4 * loss, name
    assert loss_by_transformers(exported, tokens) == loss, name


def check_adapters(root, base, targets):
    root = root / targets.replace("*", "+")
    root.mkdir()
    flags = ("--model", base, "--lora-rank", 4, "--lora-targets", targets, "--steps", 4, "--lr", 0.05, "--warmup-steps", 0)
    train(root / "lora", *flags, "--export", root / "adapters")
    train(root / "lora2", *flags, "--lora-merge", "--export", root / "merged")
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merged = transformers.AutoModelForCausalLM.from_pretrained(root / "merged", dtype=torch.float32)
    ids = ids_of(model.config.vocab_size)
    plain = logits(model, ids)
    adapted = peft.PeftModel.from_pretrained(model, root / "adapters")
    assert (logits(adapted, ids) - plain).norm() > 1e-3 * plain.norm()
    near(logits(adapted, ids), logits(merged, ids), f"peft with the adapters {targets}, and the merged export")
    assert adapted.peft_config["default"].base_model_name_or_path == str(base)


def check_tokenizer(root):
    model = pathlib.Path(__file__).parent / "tokenizer.model"
    train(root / "run4", "--model", "mistral-tiny", "--seq", 64, "--steps", 1, "--tokenizer", model, "--export",
          root / "with-tokenizer")
    tokenizer = transformers.AutoTokenizer.from_pretrained(root / "with-tokenizer")
    ids = tokenizer("Hello world").input_ids
    assert ids[0] == tokenizer.bos_token_id == 1 and tokenizer.eos_token_id == 2, ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Hello world", ids
    print("transformers opens the tokenizer of an export, and puts bos before a text")


with tempfile.TemporaryDirectory() as place:
    check_tokenizer(pathlib.Path(place))
    for special, config in SPECIAL.items():
        check_loss(pathlib.Path(place), special, config)
    folders = [check_family(pathlib.Path(place), name) for name in FAMILIES]
    check_adapters(pathlib.Path(place), folders[3], "q_proj,v_proj,down_proj")
    check_adapters(pathlib.Path(place), folders[3], "layers.0.*,*.1.mlp.*,?_proj")
    check_adapters(pathlib.Path(place), folders[3], "layers.0.*,layers.2.self_attn.v_proj")
