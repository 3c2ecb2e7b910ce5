#!/usr/bin/env python3
"""Data that atoll-data has converted train like data that atoll-train reads itself, or lets it convert.

  train.py ATOLL_TRAIN"""
import array
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from python import SOURCE, atoll_data, has

from atoll_data import encoding, token_file

TRAIN = Path(sys.argv[1]).resolve()
EXAMPLES = SOURCE / "tests" / "train"
STEPS = 8


def train(folder, name, *flags, code=0, model="mistral-tiny"):
    """Trains and returns the steps of steps.jsonl, or the output of a run that must fail."""
    out = folder / name
    env = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"),
                        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([TRAIN, "--model", str(model), "--seq", "96", "--global-batch", "4",
                           "--steps", str(STEPS), "--no-checkpoint", "--threads", "1", "--peak-seconds",
                           "0.01", "--quiet", "--out", str(out), *map(str, flags)],
                          capture_output=True, text=True, env=env)
    assert done.returncode == code, f"{name}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    if code:
        return done.stderr
    return [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]


def losses(steps):
    return [step["loss"] for step in steps]


def same(folder, name, builtin, converted):
    first, second = train(folder, name + "-builtin", *builtin), train(folder, name + "-tok", *converted)
    assert len(first) == STEPS
    for a, b in zip(first, second):
        for figure in ("loss", "grad_norm", "tokens", "valid_tokens", "samples"):
            assert a[figure] == b[figure], f"{name}, step {a['step']}: {figure} {a[figure]}, {b[figure]}"
    print(f"{name}: the losses are equal bit by bit, {first[0]['loss']:.4f} to {first[-1]['loss']:.4f}")


class Words:
    """A tokenizer of 300 ids, and of ids beyond that were added and of which only pad has a use."""
    name, digest, eos = "words", bytes(32), 2

    def __init__(self, added):
        self.vocabulary, self.pad = 300 + added, 300 if added else 0

    def pieces(self):
        return [b"x"] * self.vocabulary


def check_added_ids(folder):
    """Ids beyond the model's vocabulary that no text uses change nothing; one that occurs is named."""
    model = folder / "model.json"
    model.write_text(json.dumps({
        "model_type": "mistral", "architectures": ["MistralForCausalLM"], "vocab_size": 300, "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "max_position_embeddings": 96, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": None,
        "hidden_act": "silu", "tie_word_embeddings": False}))

    def run(name, tokenizer, last, code=0):
        file = folder / f"{name}.tok"
        with token_file.Writer(file, tokenizer, joined=False, masked=False) as writer:
            lengths = [5 + i % 7 for i in range(40)]
            ids = array.array("H", [i % last for i in range(1, sum(lengths) + 1)])
            writer.add(token_file.little(ids), lengths, b"")
            writer.finish()
        return train(folder, name, "--data", file, code=code, model=model)

    assert losses(run("added", Words(2), 300)) == losses(run("plain", Words(0), 300))
    message = run("occurs", Words(2), 302, code=1)
    assert "occurs.tok: token " in message and "id 300 is not in the model's vocabulary of 300" in message, message
    print("ids that a tokenizer has and no text uses may lie beyond the model's vocabulary")


def main(folder):
    alpaca = EXAMPLES / "alpaca.json"
    tokenizers = ["bytes"]
    if has("sentencepiece"):
        tokenizers.append(EXAMPLES / "tokenizer.model")
    for tokenizer in tokenizers:
        file = folder / "alpaca.tok"
        atoll_data(alpaca, "--tokenizer", tokenizer, "-o", file)
        name = Path(tokenizer).name
        same(folder, name, ("--data", alpaca, "--tokenizer", tokenizer), ("--data", file))
        same(folder, name + "-pack", ("--data", alpaca, "--tokenizer", tokenizer, "--pad-to", "pack"),
             ("--data", file, "--tokenizer", tokenizer, "--pad-to", "pack"))
        same(folder, name + "-all", ("--data", alpaca, "--tokenizer", tokenizer, "--train-on", "all"),
             ("--data", file, "--train-on", "all"))

    text = folder / "text.txt"
    text.write_text("\n\n".join(record["output"] for record in json.loads(alpaca.read_text())))
    atoll_data(text, "--tokenizer", "bytes", "-o", folder / "text.tok")
    same(folder, "text", ("--data", text), ("--data", folder / "text.tok"))

    # The same ids without a header, as nanoGPT writes them.
    ids = array.array("H")
    byte_tokenizer = encoding.Bytes()
    for document in text.read_text().split("\n\n"):
        ids.extend([256, *byte_tokenizer.ids(document), 257])
    (folder / "text.bin").write_bytes(ids.tobytes())
    same(folder, "raw", ("--data", text),
         ("--data", folder / "text.bin", "--data-type", "uint16", "--tokenizer", "bytes"))

    # A file larger than memory: its holes read as id 0, and only the rows of a few steps are read.
    with open(folder / "large.bin", "wb") as large:
        large.truncate(1 << 36)
    steps = train(folder, "large", "--data", f"{folder}/large.bin:0.5,{folder}/text.bin:0.5",
                  "--data-type", "uint16", "--tokenizer", "bytes")
    metrics = json.loads((folder / "large" / "metrics.json").read_text())
    assert len(steps) == STEPS and metrics["peak_memory_bytes"] < 1 << 30, metrics["peak_memory_bytes"]
    print(f"64 GiB of ids train in {metrics['peak_memory_bytes'] >> 20} MiB")

    # A mixture with an evaluation writes both losses.
    steps = train(folder, "mixed", "--data", f"{folder}/text.tok:0.25,{alpaca}:0.75", "--tokenizer",
                  "bytes", "--eval-split", "0.2", "--eval-every", "4")
    assert [step["step"] for step in steps if step["eval_loss"] is not None] == [4, 8], steps
    metrics = json.loads((folder / "mixed" / "metrics.json").read_text())
    assert metrics["eval_loss"] == steps[-1]["eval_loss"] and metrics["data_wait_s"] >= 0

    # A damaged file is refused at the start, even if the value is valid: byte 28 is the id that ends texts.
    for at, reason in ((400, "byte 48: the content does not have the fingerprint"),
                       (28, "byte 160: the header does not have its fingerprint")):
        data = bytearray((folder / "text.tok").read_bytes())
        data[at] ^= 1
        (folder / "damaged.tok").write_bytes(data)
        message = train(folder, "damaged", "--data", folder / "damaged.tok", code=1)
        assert f"damaged.tok: {reason}" in message, message
    check_added_ids(folder)
    print("a mixture is evaluated, and a damaged file is refused")

    shown = subprocess.run([TRAIN, "--data", alpaca, "--show-data", "2", "--out", folder / "shown"],
                           capture_output=True, text=True, check=True).stdout
    assert "sample 2 of alpaca.json" in shown and "trained \"" in shown, shown
    assert not (folder / "shown").exists()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
