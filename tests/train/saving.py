#!/usr/bin/env python3
"""Kills jobs at random instants around their saves, and fills their disk.

  tests/train/saving.py ATOLL_TRAIN [--kills N]

Kills: a job of two ranks saves every second step, beside training if its optimizer can. It is killed with
SIGKILL (rank 0, rank 1 or both) after a random time and started again with --resume auto, N times in all (20;
200 with ATOLL_TEST_LONG=1) over three kinds of job: full shard in f32, sharded optimizer in bf16 with an average
of weights, and Muon. Each start must go on from the newest save that was announced before the kill, or from a later one, without a
warning, and at the end all losses must equal those of a job that was never killed, bit for bit.

Disks: a full disk and a read-only folder. Each gives one clear line, and later the run goes on from the newest
checkpoint that is whole. The disks are a tmpfs of their own and need namespaces; without them this part is skipped,
with the reason.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

CONFIG = {"model_type": "mistral", "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
          "num_key_value_heads": 2, "intermediate_size": 256, "vocab_size": 259, "max_position_embeddings": 128}
RANKS = 2
FULL = ("--strategy", "full_shard")
KINDS = (FULL, ("--strategy", "shard_optimizer", "--dtype", "bf16", "--ema", 0.9), (*FULL, "--optimizer", "muon"))
PATIENCE = 60  # seconds that a job may take at most
LOG = re.compile(r"[0-9-]{10} [0-9:.]{12} atoll ")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Job:
    """Two ranks of atoll-train that write to `out`, started at once."""

    def __init__(self, train, root, out, *flags):
        (root / "model.json").write_text(json.dumps(CONFIG))
        strategy = () if "--strategy" in flags else FULL
        command = [train, "--model", root / "model.json", "--data", "synthetic:copy", "--seq", 32, "--global-batch", 4,
                   "--mesh", "1x2", *strategy, "--threads", 1, "--peak-seconds", 0.01,
                   "--lr-schedule", "constant", "--quiet", "--out", out, *flags]
        port = free_port()
        self.logs = [root / f"rank{rank}.log" for rank in range(RANKS)]
        self.ranks = []
        for rank in range(RANKS):
            variables = dict(os.environ, ATOLL_RANK=str(rank), ATOLL_SIZE=str(RANKS), ATOLL_TOKEN="saving",
                             ATOLL_ADDR=f"127.0.0.1:{port}", ATOLL_TIMEOUT="20")
            with open(self.logs[rank], "wb") as log:
                self.ranks.append(subprocess.Popen([str(part) for part in command], env=variables, stdout=log,
                                                   stderr=log, stdin=subprocess.DEVNULL))

    def running(self):
        return all(rank.poll() is None for rank in self.ranks)

    def kill(self, ranks):
        for rank in ranks:
            self.ranks[rank].send_signal(signal.SIGKILL)

    def end(self):
        """Waits for all ranks and returns their exit codes."""
        end = time.monotonic() + PATIENCE
        try:
            return [rank.wait(max(0.0, end - time.monotonic())) for rank in self.ranks]
        except subprocess.TimeoutExpired:
            self.kill(range(RANKS))
            sys.exit(f"FAILED: the job did not end within {PATIENCE} s: {self.text()}")

    def text(self, rank=0):
        return self.logs[rank].read_text(errors="replace")

    def answers(self, rank):
        """Returns the lines of a rank that are not of the log."""
        return [line for line in self.text(rank).splitlines() if line and not LOG.match(line)]


def losses(out):
    try:
        lines = (out / "steps.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return {}
    found = {}
    for line in lines:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue  # the kill may cut the last line
        found[record["step"]] = record["loss"]
    return found


def saved_step(out):
    """Returns the step of the save that was announced last: the link `checkpoint` leads to it."""
    try:
        return int(os.readlink(out / "checkpoint").rsplit("-", 1)[1])
    except FileNotFoundError:
        return 0


def check_kills(train, root, kills, seed, kind):
    numbers = random.Random(seed)
    out, seen, worst = root / "killed", {}, 0
    shutil.rmtree(out, ignore_errors=True)
    victims = {"0": 0, "1": 0, "0 1": 0}
    for kill in range(kills):
        before = saved_step(out)
        job = Job(train, root, out, *kind, "--steps", 1_000_000, "--checkpoint-every", 2, "--resume", "auto")
        end = time.monotonic() + PATIENCE
        while job.running() and saved_step(out) <= before and time.monotonic() < end:
            time.sleep(0.002)
        time.sleep(numbers.uniform(0, 0.2))
        assert job.running(), f"kill {kill}: the job ended before it was killed: {job.text()}"
        chosen = numbers.choice([[0], [1], [0, 1]])
        victims[" ".join(map(str, chosen))] += 1
        job.kill(chosen)
        codes = job.end()
        assert all(codes), f"kill {kill}: exit codes {codes}"
        assert "not whole" not in job.text(), f"kill {kill}: {job.text()}"
        resumed = re.search(r"resuming \S+ after step (\d+)", job.text())
        start = int(resumed[1]) if resumed else 0
        assert start >= before, f"kill {kill}: step {before} was saved, but the run went on after {start}"
        worst = max(worst, start - before)
        now = losses(out)
        for step, loss in now.items():
            assert seen.setdefault(step, loss) == loss, f"kill {kill}: another loss of step {step}"
    last = max(seen)
    job = Job(train, root, root / "undisturbed", *kind, "--steps", last, "--no-checkpoint")
    assert job.end() == [0, 0], job.text()
    undisturbed = losses(root / "undisturbed")
    assert undisturbed == seen, "other losses than those of a job that was never killed"
    print(f"{' '.join(map(str, kind))}: {kills} kills (seed {seed}; rank 0 {victims['0']}, rank 1 {victims['1']}, both {victims['0 1']}): a whole "
          f"checkpoint every time, and {last} losses equal those of a job that was never killed", flush=True)


def mount(*arguments):
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True).returncode == 0


def check_disk(train, root):
    """Fills the disk during a run, and makes it read-only before one. Runs in a mount namespace of its own."""
    disk = root / "disk"
    disk.mkdir()
    assert mount("-t", "tmpfs", "-o", "size=64m", "tmpfs", disk), "cannot mount a tmpfs"
    out = disk / "out"
    assert Job(train, root, out, "--steps", 2, "--checkpoint-every", 2).end() == [0, 0]
    used = sum(file.stat().st_size for file in (out / "checkpoints").rglob("*"))
    # Leaves room for half a checkpoint.
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "filler").write_bytes(bytes(free - used // 2))
    before = {file: file.read_bytes() for file in (out / "checkpoints").rglob("*") if file.is_file()}
    job = Job(train, root, out, "--steps", 6, "--checkpoint-every", 2, "--resume", "auto")
    assert job.end() == [1, 1], f"a full disk: {job.text()}"
    for rank in range(RANKS):
        lines = job.answers(rank)
        assert len(lines) == 1 and "No space left" in lines[0], f"a full disk: rank {rank} printed {lines}"
    message = job.answers(0)[0]
    assert {file: file.read_bytes() for file in (out / "checkpoints").rglob("*") if file.is_file()} == before
    print(f"a full disk: {message.replace(str(root) + '/', '')}", flush=True)

    (disk / "filler").unlink()
    assert mount("-o", "remount,ro", disk), "cannot make the tmpfs read-only"
    job = Job(train, root, out, "--steps", 6, "--resume", "auto")
    assert job.end() == [1, 1], f"a read-only folder: {job.text()}"
    for rank in range(RANKS):
        lines = job.answers(rank)
        assert len(lines) == 1 and "ead-only" in lines[0], f"a read-only folder: rank {rank} printed {lines}"
    print(f"a read-only folder: {job.answers(0)[0].replace(str(root) + '/', '')}", flush=True)
    assert mount("-o", "remount,rw", disk)
    job = Job(train, root, out, "--steps", 6, "--resume", "auto")
    assert job.end() == [0, 0], job.text()
    assert "after step 2" in job.text(), job.text()
    undisturbed = Job(train, root, root / "six", "--steps", 6, "--no-checkpoint")
    assert undisturbed.end() == [0, 0], undisturbed.text()
    assert losses(out)[6] == losses(root / "six")[6], "another loss after the disk had room again"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=200 if os.environ.get("ATOLL_TEST_LONG") else 20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--disk", type=pathlib.Path, help=argparse.SUPPRESS)  # the part in a namespace
    args = parser.parse_args()
    train = args.train.resolve()
    if args.disk:
        check_disk(train, args.disk)
        return
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for i, kind in enumerate(KINDS):
            check_kills(train, root, max(1, (args.kills + i) // len(KINDS)), args.seed + i, kind)
        isolate = ["unshare", "--mount", "--propagation", "private"]
        if subprocess.run([*isolate, "true"], capture_output=True).returncode:
            print("skipped: full and read-only disks need mount namespaces")
            sys.exit(77)
        sys.exit(subprocess.run([*isolate, sys.executable, __file__, train, "--disk", root]).returncode)


main()
