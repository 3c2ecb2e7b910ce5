#!/usr/bin/env python3
"""Opens exports of atoll-train with transformers and peft, and compares their losses.

  tests/train/hf_export.py ATOLL_TRAIN

For each family: trains one step from random weights with learning rate 0, so that the exported weights
are those of the loss of the step, and computes this loss with transformers from the export. Then trains
adapters, and compares the loss of the base model with the adapters by peft with that of the merged export.
The tokenizer of an export puts bos before a text.
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
    command = [TRAIN, "--data", "synthetic:copy", "--global-batch", "4", "--threads", "1", "--no-checkpoint",
               "--peak-seconds", "0.05", "--quiet", "--out", folder, *flags]
    subprocess.run([str(part) for part in command], check=True, stderr=subprocess.DEVNULL, timeout=120)
    return json.loads((folder / "metrics.json").read_text())


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
    # Import, no change and export give the same bytes.
    train(root / "run2", "--model", first, "--steps", 1, "--lr", 0, "--weight-decay", 0, "--export", again)
    config = transformers.AutoConfig.from_pretrained(again)
    assert config.bos_token_id == 5 and config.eos_token_id == [6, 7]
    before, after = tensors(first), tensors(again)
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    # What transformers saves, atoll-train reads: an export of it has the same weights.
    model.save_pretrained(root / f"{name}-hf")
    train(root / "run3", "--model", root / f"{name}-hf", "--steps", 1, "--lr", 0, "--weight-decay", 0, "--export",
          root / f"{name}-c")
    after = tensors(root / f"{name}-c")
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    print(f"{name}: transformers opens the export, and {len(before)} tensors survive both ways")
    return first


def check_adapters(root, base, targets):
    root = root / targets.replace("*", "+")
    root.mkdir()
    flags = ("--model", base, "--lora-rank", 4, "--lora-targets", targets, "--steps", 4, "--lr", 0.05, "--lr-warmup", 0)
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
    folders = [check_family(pathlib.Path(place), name) for name in FAMILIES]
    check_adapters(pathlib.Path(place), folders[3], "q_proj,v_proj,down_proj")
    check_adapters(pathlib.Path(place), folders[3], "layers.0.*,*.1.mlp.*,?_proj")
    check_adapters(pathlib.Path(place), folders[3], "layers.0.*,layers.2.self_attn.v_proj")
