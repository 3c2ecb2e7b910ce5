#!/usr/bin/env python3
"""Data that atoll-data has converted train like data that atoll-train reads itself.

  train.py ATOLL_TRAIN"""
import array
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from python import SOURCE, atoll_data, has

from atoll_data import encoding

TRAIN = Path(sys.argv[1]).resolve()
EXAMPLES = SOURCE / "tests" / "train"
STEPS = 8


def train(folder, name, *flags, code=0):
    """Trains and returns the steps of steps.jsonl, or the output of a run that must fail."""
    out = folder / name
    done = subprocess.run([TRAIN, "--model", "mistral-tiny", "--seq", "96", "--global-batch", "4",
                           "--steps", str(STEPS), "--no-checkpoint", "--threads", "1", "--peak-seconds",
                           "0.01", "--quiet", "--out", str(out), *map(str, flags)],
                          capture_output=True, text=True)
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

    # Damage is found at the start.
    data = bytearray((folder / "text.tok").read_bytes())
    data[400] ^= 1
    (folder / "text.tok").write_bytes(data)
    message = train(folder, "damaged", "--data", folder / "text.tok", code=1)
    assert "text.tok: byte 48: the content does not have the fingerprint" in message, message
    print("a mixture is evaluated, and a damaged file is refused")

    chats = folder / "chats.jsonl"
    chats.write_text('{"messages": []}\n')
    message = train(folder, "chats", "--data", chats, code=1)
    assert f"atoll-data {chats} --tokenizer TOKENIZER -o {folder}/chats.tok" in message, message
    shown = subprocess.run([TRAIN, "--data", alpaca, "--show-data", "2", "--out", folder / "shown"],
                           capture_output=True, text=True, check=True).stdout
    assert "sample 2 of alpaca.json" in shown and "trained \"" in shown, shown
    assert not (folder / "shown").exists()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
