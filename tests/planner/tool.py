#!/usr/bin/env python3
"""atoll-plan from outside: the table, JSON, and wrong input.

  tests/planner/tool.py ATOLL_PLAN
"""
import json
import os
import pathlib
import pty
import re
import select
import subprocess
import sys
import tempfile
import time

PLAN = sys.argv[1]


def run(*flags, code=0):
    done = subprocess.run([PLAN, *map(str, flags)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, f"{flags}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def found_in(file):
    """The candidates of a file of --json."""
    return json.loads(file.read_text())["candidates"]


def results(text):
    """What follows the assumptions."""
    return text.split("\n\n", 1)[1]


def check_assumptions(folder):
    """What a prediction assumes comes first, with the same keys in JSON."""
    text = run("--model", "qwen2.5-7b", "--hosts", "3", "--micro-batch", "1", "--recompute", "full", "--json", folder / "a.json")
    found = json.loads((folder / "a.json").read_text())
    assert found["schema"] == "atoll-plan-1" and found["remarks"], found
    lines = text.split("\n\n")[0].splitlines()
    assert lines[0] == "Assumptions" and [line.split()[0] for line in lines[1:]] == list(found["assumptions"]), text
    assert {"gpu", "intra_host_links", "inter_host_links", "sequence_length", "rows_per_step", "dtype", "recomputation",
            "tokens_per_s"} <= set(found["assumptions"]), found
    assert "cluster-toolkit" in text and "8x400G by assumption" in text and "atoll-train plans the mesh 3x8" in text, text
    assert re.search(r"Below [0-9.]+ GB/s a host, hybrid_shard 3x8 wins", text), text
    assert re.search(r"mpirun -n 24 .*--strategy shard_optimizer --mesh 1x24 --seq 2048 --micro-batch 1 --global-batch 24", text), text
    text = results(run("--model", "qwen2.5-7b", "--hosts", "3", "--mesh", "3x8", "--dtype", "f32"))
    assert "\nhybrid_shard " in text and " 1x24 " not in text and text.splitlines()[-1].endswith("--data FILE --tokenizer TOKENIZER --dtype f32"), text
    assert "--mesh 3x8 has no effect on shards with full_shard and others, which were not tried: only hybrid_shard" in text, text
    help_text = " ".join(run("--help-all").split())
    for default in ("CPU}=H100", "=8x400G", "--seq INT:INT in [1 - 16777215]=2048", "--hosts INT:INT in [0 - 8192]=1"):
        assert default in help_text, (default, help_text)


def check_gpus_and_models(folder):
    """Any GPU by its figures; models as of atoll-train; adapters; fp8."""
    job = ["--micro-batch", "1", "--recompute", "full", "--strategy", "full_shard", "--json", folder / "b.json"]
    speeds = {}
    for gpu in (["--gpu", "L40S"], ["--gpu", "GB200"], ["--gpu", "H100", "--memory", "20"],
                ["--gpu", "Abacus", "--peak", "100", "--memory", "60", "--bandwidth", "1000"],
                ["--peak", "200", "--memory", "60", "--bandwidth", "1000", "--intra", "200"], ["--lora-rank", "16"], ["--fp8"], []):
        text = run(*job, *gpu)
        speeds[" ".join(gpu[:2])] = found_in(folder / "b.json")[0]["tokens_per_s"]
        assert ("fp8, not measured" in text) == ("--fp8" in gpu) and ("--peak" in text) == ("--peak" in gpu), text
    assert speeds["--gpu Abacus"] < speeds["--peak 200"] and speeds[""] < min(speeds["--fp8"], speeds["--lora-rank 16"]), speeds
    assert "L40S, 362 TFLOP/s" in run("--topology", "pcie-8", "--micro-batch", "1")
    text = run(*job, "--gpu", "Abacus", "--peak", "100", "--memory", "80GB", "--bandwidth", "1TB/s", "--fp8", "--tokens", "1T")
    for part in (" 80.0 GB, 900 GB/s", "22 GB/s (a ring over PCIe 4.0 or 5.0 (NVIDIA/nccl 1639), by assumption: --intra sets it)",
                 "in fp8 at 200 TFLOP/s by assumption (twice --peak)", "1e+12 tokens take"):
        assert part in text, (part, text)
    assert found_in(folder / "b.json")[0]["fp8"] is True
    for inter, rate in (("4x400G", 200), ("4x400Gb/s", 200), ("8x50GB/s", 400), ("TCP 2 GB/s", 2)):
        assert f"inter_host_links     {rate} GB/s" in run(*job, "--hosts", "2", "--inter", inter), inter
    done = subprocess.run([PLAN, *job[:-2], "--gpu", "GB200", "--json", "-"], capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["schema"] == "atoll-plan-1" and "8 GB200 on a host, but a tray has 4" in done.stderr, done
    check_cpus(job)
    snapshot = folder / "hub/models--acme--small/snapshots/main"
    snapshot.mkdir(parents=True)
    shape = dict(model_type="mistral", num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
                 intermediate_size=128, vocab_size=512, sliding_window=None, tie_word_embeddings=False)
    (snapshot / "config.json").write_text(json.dumps(shape))
    env = dict(os.environ, HF_HUB_CACHE=str(folder / "hub"))
    for model, code, expected in (("acme/small", 0, "small, 0.0001"), (snapshot, 0, "small, 0.0001"),
                                  (snapshot / "config.json", 0, "B parameters"), ("acme/absent", 2, "`hf download acme/absent`"),
                                  (folder, 2, "name the folder of a model"), ("x.json", 2, "--model x.json: no such file")):
        done = subprocess.run([PLAN, "--model", model, "--micro-batch", "1"], capture_output=True, text=True, timeout=60, env=env)
        assert done.returncode == code and expected in (done.stderr if code else done.stdout), (model, done.stdout, done.stderr)


def check_cpus(job):
    """The ranks of a host share the memory of its CPUs, and the command names the type that is no default there."""
    text = run(*job, "--gpu", "CPU", "--gpus-per-host", "8", "--model", "mistral-7b")
    assert "25.8" not in text and "3.2 GB of a rank (the 8 ranks of a host share its memory)" in text, text
    assert "5 GB/s (estimate: a quarter of the rate of a copy)" in text, text
    assert "Nothing fits in the 3.2 GB of a rank" in text and "GPUs" not in text, text
    small = (*job, "--gpu", "CPU", "--gpus-per-host", "2", "--memory", "8GB", "--model", "mistral-tiny", "--hosts", "2")
    text = run(*small)
    assert "--dtype" not in text.splitlines()[-1] and "mpirun -n 4 --bind-to none --oversubscribe atoll-train" in text, text
    text = run(*small, "--dtype", "bf16")
    assert "4.0 GB of a rank" in text and text.splitlines()[-1].endswith("--dtype bf16") and "8 Gbit/s over TCP" in text, text
    done = subprocess.run([PLAN, "--topology", "here"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 or "use --gpu CPU --gpus-per-host RANKS instead" in done.stderr, done.stderr


def check_progress(folder):
    """A long search and a measurement show on a terminal how far they are, unless --quiet is given."""
    search = ["--model", "llama-3.1-8b", "--hosts", "512", "--dtype", "auto", "--prefetch", "auto", "--growth"]
    measure = ["--model", "mistral-tiny", "--measure", folder / "shown.json", "--measure-seconds", "2"]
    searching = rb"predicting settings on 512 host\(s\) \([0-9]+ of [0-9]+(?:, [0-9:]+ left)?\): [0-9]+ s"
    for job, line in ((search, searching), ([*search, "--quiet"], searching),
                      (measure, rb"measuring mistral-tiny with [0-9]+ layers, 1 process\(es\): [0-9]+ s")):
        quiet = "--quiet" in job
        ours, theirs = pty.openpty()
        process = subprocess.Popen([PLAN, *job], stdout=subprocess.DEVNULL, stderr=theirs)
        shown, end = b"", time.monotonic() + (3 if quiet else 30)
        while time.monotonic() < end and len(set(re.findall(line, shown))) < 2:
            if select.select([ours], [], [], 0.1)[0]:
                shown += os.read(ours, 4096)
        if job is measure:
            assert process.wait(timeout=60) == 0
        process.kill()
        process.wait()
        assert bool(re.search(line, shown)) != quiet, shown
        os.close(ours)
        os.close(theirs)


def check_advice_on_memory(folder):
    """Nearly full memory, what fits on more hosts, and the mesh that a strategy uses."""
    text = run("--model", "llama-3.1-8b", "--hosts", "64", "--micro-batch", "8", "--strategy", "hybrid_shard", "--prefetch", "2")
    assert re.search(r"The first line needs (9[0-9]|100) % of a rank's memory", text) and "With a tenth to spare" in text, text
    assert re.search(r"\nTo train with a tenth of the memory to spare: mpirun -n 512 .* --tokenizer TOKENIZER", text), text
    text = run("--model", "llama-3.1-8b", "--gpu", "V100", "--gpus-per-host", "1")
    assert "it fits on 8 hosts with --strategy full_shard" in text, text
    assert text.count("does not fit") == 1 and "other candidates do not fit in the 34.1 GB of a rank" in text, text
    assert run("--model", "llama-3.1-8b", "--gpu", "V100", "--gpus-per-host", "1", "--hosts", "8", "--top", "1"
               ).count("does not fit") == 0
    text = run("--hosts", "2", "--strategy", "full_shard", "--mesh", "2x8", "--micro-batch", "1", "--recompute", "full")
    assert " 1x16 " in text and text.count("2x8") == 1 and "--mesh 2x8 has no effect on shards with full_shard: only" in text, text
    for gpu, hosts in (("H100", 1), ("A30", 2)):
        text = run("--model", "llama-3.1-8b", "--hosts", "4", "--gpu", gpu, "--json", folder / "least.json")
        least = min(entry["memory_bytes"] for entry in found_in(folder / "least.json"))
        assert re.search(rf"Least memory: full_shard 1x32, 1 rows, recompute full: {least / 1e9:.1f} GB of .* fits on {hosts} host", text), text


def check_table(folder):
    text = run("--model", "qwen2.5-7b", "--gpu", "H100", "--hosts", "2", "--micro-batch", "1", "--tokens", "1e9",
               "--price", "2", "--top", "1000", "--json", folder / "table.json")
    found = found_in(folder / "table.json")
    assert "hybrid_shard" in text and "full_shard" in text and "GPU hours" in text, text
    speeds = [entry["tokens_per_s"] for entry in found if entry["fits"]]
    assert speeds == sorted(speeds, reverse=True) and len(speeds) > 4, speeds
    best = found[0]
    assert abs(best["tokens_per_s"] * best["step_s"] / (16 * 2048) - 1) < 1e-6, best
    assert sum(best["memory"].values()) <= best["memory_bytes"] and best["gpu_hours"] > 0 and best["cost"] == 2 * best["gpu_hours"]
    assert "Memory of the first line" in text, text
    tied = sum(speed > 0.97 * speeds[0] for speed in speeds[1:])
    assert text.count("tied with the first") == tied, text
    both = run("--model", "qwen2.5-7b", "--strategy", "full_shard", "--micro-batch", "1", "--recompute", "none", "--dtype", "auto")
    assert results(both).index("bf16") < results(both).index("f32"), both
    small = run("--layers", "4", "--hidden", "1024", "--heads", "8", "--ffn", "2048", "--strategy", "no_shard", "--top", "1")
    assert "no_shard" in small and results(small) != results(run("--strategy", "no_shard", "--top", "1")), small
    steps = {}
    for attention in ("fused", "eager"):
        run("--model", "llama-3.1-8b", "--micro-batch", "1", "--attention", attention, "--json", folder / "attention.json")
        steps[attention] = found_in(folder / "attention.json")[0]["step_s"]
    assert steps["eager"] > steps["fused"], steps
    one = run("--model", "qwen2.5-7b", "--hosts", "2", "--strategy", "hybrid_shard", "--mesh", "2x8",
              "--micro-batch", "1", "--recompute", "none")
    assert one.count("\nhybrid_shard ") == 1 and " 2x8 " in one, one


def check_lanes(folder):
    def span(tid, name, cat, ts, dur):
        return dict(ph="X", pid=0, tid=tid, name=name, cat=cat, ts=ts, dur=dur)
    names = [dict(ph="M", pid=0, tid=tid, name="thread_name", args=dict(name=name))
             for tid, name in enumerate(("step", "compute", "gather", "reduce"))]
    events = []
    for step in range(2):
        events += [span(0, f"step {step}", "work", 0, 9e6), span(1, "forward layers.0", "work", 0, 2e6),
                   span(1, "wait gather layers.0", "wait", 0, 1e6), span(1, "backward layers.0", "work", 0, 4e6),
                   span(2, "layers.0", "communication", 0, 3e6), span(3, "layers.0", "communication", 0, 5e5)]
    (folder / "trace.json").write_text(json.dumps(dict(traceEvents=names + events)))
    job = ["--model", "mistral-tiny", "--strategy", "full_shard", "--micro-batch", "1", "--recompute", "none"]
    text = run(*job, "--trace", folder / "trace.json")
    measured = {line[:30].strip(): float(line.split()[-1]) for line in results(text).splitlines()[1:]}
    assert measured["compute: forward"] == 2 and measured["compute: backward"] == 4, text
    assert measured["compute waits for gather"] == 1 and measured["gather busy"] == 3, text
    assert measured["reduce busy"] == 0.5, text
    (folder / "trace.json").write_text("{}")
    message = run(*job, "--trace", folder / "trace.json", code=1)
    assert "not a trace of atoll-train" in message and message.count("\n") == 1, message


def data_of(page):
    """The data that a page draws."""
    return json.loads(re.search('id="report">(.*?)</script>', page.read_text())[1])


def check_page(folder):
    run("--model", "qwen2.5-7b", "--hosts", "2", "--micro-batch", "1", "--html", folder / "plan.html")
    page = data_of(folder / "plan.html")
    assert page["kind"] == "plan" and page["hosts"] == 2 and [one["hosts"] for one in page["growth"]] == [1, 2], page
    assert any(one["strategy"] == "hybrid_shard" for one in page["candidates"]) and page["total"] >= len(page["candidates"])
    assert page["timeline"]["name"] == "The predicted step" and len(page["timeline"]["spans"]) > 50, page["timeline"]
    assert page["timeline_memory"]["parameters"] > 0 and page["shown_micro_batches"] == 1, page


def check_explanation(folder):
    job = ["--model", "qwen2.5-7b", "--hosts", "3", "--strategy", "full_shard", "--micro-batch", "1", "--recompute", "full"]
    text = run(*job, "--measured", "31589", "--measured-one-host", "36382")
    assert "x as much" in text and "hybrid_shard on a mesh of 3 x 8" in text and "atoll-busbw" in text, text
    (folder / "metrics.json").write_text(json.dumps({"tokens_per_s": 31589.0, "exposed_s": 1.1, "padding_fraction": 0.4,
                                                     "data_wait_s": 0.2}))
    text = run(*job, "--explain", folder / "metrics.json")
    assert "40 % of the tokens are padding" in text and "waits 0.2 s for data" in text, text
    check_run(folder)


def check_run(folder):
    """A run's folder has its settings: nothing needs to be repeated, and nothing may contradict it."""
    ranks = dict(world_size=24, plan=dict(hosts=[dict(name=f"h{h}", ranks=list(range(8 * h, 8 * h + 8))) for h in range(3)]))
    args = dict(model="qwen2.5-7b", strategy="full_shard", mesh="1x24", dtype="bf16", reduce_dtype="bf16", moments="f32",
                recompute="full", prefetch=1, seq=2048, micro_batch=1, global_batch=24, islands=0, optimizer="adamw", **ranks)
    # Rows of 1,500 tokens on average, 500 of them padding.
    metrics = dict(tokens_per_s=24000.0, padded_tokens_per_s=12000.0, steps_per_s=1.0, exposed_s=0.2, padding_fraction=1 / 3,
                   gpu0="NVIDIA H100 80GB HBM3", parameters=7615616512)
    place = folder / "run"
    place.mkdir(exist_ok=True)

    def explain(*flags, args=args, metrics=metrics, code=0):
        (place / "metrics.json").write_text(json.dumps(metrics))
        (place / "run_args.json").write_text(json.dumps(args))
        return run("--explain", place, *flags, code=code)

    text = explain()
    step = next(line for line in text.splitlines() if line.startswith("step"))
    assert "36000 measured" in text and step.split()[-1] == "1.0000", text
    assert "33 % of the tokens are padding" in text and "more kernels than atoll" not in text, text
    assert text == explain("--strategy", "full_shard", "--seq", "2048", "--hosts", "3"), "the same settings are accepted"
    for flag, value, had in (("--strategy", "hybrid_shard", "full_shard"), ("--seq", "1024", "2048"), ("--hosts", "2", "3"),
                             ("--mesh", "3x8", "1x24"), ("--micro-batch", "2", "1"), ("--recompute", "none", "full")):
        message = explain(flag, value, code=2)
        assert message == f"atoll-plan: {flag} {value}: the run of --explain had {had}; leave the flag out\n", message
    message = explain("--vocab", "1000", code=2)
    assert "but the run had 7615616512" in message and message.count("\n") == 1, message
    message = explain(metrics=dict(metrics, gpu0=None), code=2)
    assert "the run was on CPUs: add --machine" in message and message.count("\n") == 1, message
    message = explain(args=dict(args, seq="long"), code=1)
    assert 'run_args.json: "seq" is not an integer' in message and message.count("\n") == 1, message
    assert '"seq" is -1, and must be in [1,' in explain(args=dict(args, seq=-1), code=1)
    for key in ("strategy", "mesh", "dtype", "reduce_dtype", "moments", "recompute", "optimizer"):
        message = explain(args=dict(args, **{key: "\x1b[2Jodd"}), code=1)
        assert f'run_args.json: "{key}" is "\\u001b[2Jodd", and must be ' in message and message.count("\n") == 1, message
    message = explain(args=dict(args, model="\x1b[2Jodd"), code=2)
    assert 'the model of the run, "\\u001b[2Jodd", is neither' in message and message.count("\n") == 1, message
    uneven = dict(hosts=[dict(name="a", ranks=[0]), dict(name="b", ranks=[1, 2])])
    assert "different numbers of ranks" in explain(args=dict(args, world_size=3, plan=uneven), code=1)
    for key, value in (("tokens_per_s", -5.0), ("tokens_per_s", 0.0), ("exposed_s", -1.0), ("padding_fraction", 1.5)):
        message = explain(metrics=dict(metrics, **{key: value}), code=1)
        assert f"metrics.json: `{key}` is" in message and message.count("\n") == 1, message
    message = explain(metrics=dict(metrics, world_size=8), code=1)
    assert "of 8 ranks, but run_args.json is of 24" in message and message.count("\n") == 1, message
    # The run may have fewer ids than the preset. Each id has a row of the embedding and one of the head.
    assert explain(metrics=dict(metrics, parameters=7615616512 - 2 * 3584 * (152064 - 32000))) != text
    # With 16 layers, the parameters differ by a multiple of an id's, but no vocabulary explains that.
    small = dict(args, model="mistral-7b")
    message = explain("--layers", "16", args=small, metrics=dict(metrics, parameters=7241732096), code=2)
    assert "but the run had 7241732096" in message and message.count("\n") == 1, message
    assert "fp8, not measured" not in explain(args=dict(args, fp8=True)) and "in fp8 at 1978" in explain(args=dict(args, fp8=True))
    for changed, named in [(dict(optimizer="muon"), "--optimizer muon"), (dict(lora_rank=8, lora_base="int8"), "--lora-base int8")]:
        explain(args=dict(args, **changed))
        done = subprocess.run([PLAN, "--explain", place, "--quiet"], capture_output=True, text=True, timeout=60)
        assert done.stderr == f"atoll-plan: warning: the run had {named}, which the prediction ignores\n", done.stderr


def check_advice(folder):
    text = run("--model", "llama-3.1-8b", "--gpu", "A100-40GB", "--strategy", "no_shard", "--micro-batch", "4",
               "--recompute", "none")
    assert "Nothing fits" in text and "--strategy full_shard" in text and "saves" in text, text
    assert "The job fits in" in text, text
    job = ["--model", "llama-3.1-8b", "--gpu", "A100-40GB", "--gpus-per-host", "2", "--micro-batch", "4", "--recompute", "none"]
    text = run(*job, "--strategy", "full_shard", "--html", folder / "small.html")
    advice = text[text.index("Nothing fits"):].splitlines()
    last = [line for line in advice if line.startswith("All of them together need")]
    assert len(last) == 1 and "it fits on" in last[0], text
    remarks = "\n".join(data_of(folder / "small.html")["remarks"])
    assert last[0].split(" GB")[0] in remarks, "the page lacks the advice"
    text = run("--model", "qwen2.5-7b", "--hosts", "4", "--micro-batch", "1", "--recompute", "none", "--growth")
    assert "% of linear" in text and ("faster than" in text or "within" in text), text
    assert "the global batch grows with the hosts" in text, text
    fixed = run("--model", "qwen2.5-7b", "--hosts", "4", "--recompute", "none", "--growth", "--global-batch", "64")
    assert fixed.count("global batch 64") == 3 and "has 64 rows on all" in fixed, fixed
    wider = run("--model", "llama-3.1-8b", "--gpu", "A100-40GB", "--hosts", "2", "--growth", "--global-batch", "64")
    assert re.search(r" 10[1-9]\.[0-9] % of linear .*; it recomputes less\n", wider), wider
    slow = run("--model", "qwen2.5-7b", "--hosts", "16", "--micro-batch", "1", "--recompute", "none", "--strategy",
               "full_shard", "--inter", "TCP 1G", "--growth")
    assert "Beyond" in slow, slow
    even = run("--model", "qwen2.5-7b", "--hosts", "9", "--micro-batch", "1", "--recompute", "none", "--growth")
    assert "Beyond" not in even and "\nUp to 9 hosts, each further host adds more than half of" in even, even
    catalog = run("--topology", "hgx-h100x2", "--model", "qwen2.5-7b", "--micro-batch", "1", "--strategy", "hybrid_shard",
                  "--recompute", "none")
    same = run("--gpu", "H100", "--hosts", "2", "--model", "qwen2.5-7b", "--micro-batch", "1", "--strategy", "hybrid_shard",
               "--recompute", "none")
    assert results(catalog) == results(same), catalog + same


def check_curves(folder):
    def curve(name, ranks, hosts):
        row = dict(collective="all_gather", place="out", dtype="f32", ranks=ranks, hosts=hosts, bytes=1 << 28, time_us=5e4)
        (folder / name).write_text(json.dumps(dict(schema="atoll-curve-1", rows=[row])))
        return folder / name
    job = ["--model", "qwen2.5-7b", "--hosts", "2", "--strategy", "full_shard", "--micro-batch", "1", "--recompute", "none"]
    used, unused = curve("used.json", 16, 2), curve("unused.json", 4, 1)
    done = subprocess.run([PLAN, *job, "--curve", used, "--curve", unused], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr.count("\n") == 1, done.stderr
    assert "unused.json" in done.stderr and "4 ranks on 1 host(s)" in done.stderr, done.stderr
    assert results(done.stdout) != results(run(*job)), "the measured curve changes nothing"
    slow = results(run(*job, "--curve", used, "--busbw", "2"))
    assert slow != results(run(*job, "--curve", used)), "a degraded fabric changes nothing"
    (folder / "bf16.json").write_text(used.read_text().replace('"f32"', '"bf16"'))
    message = run(*job, "--curve", folder / "bf16.json", code=1)
    assert "no rows of f32" in message and message.count("\n") == 1, message
    (folder / "past.json").write_text(used.read_text().replace("50000.0", "-5"))
    message = run(*job, "--curve", folder / "past.json", code=1)
    assert 'past.json: "rows[' in message and '.time_us" is -5' in message and message.count("\n") == 1, message


def check_measure(folder):
    """Predictions with a measured machine know the memory of a process as well."""
    job = ["--model", "mistral-tiny", "--vocab", "256", "--seq", "64", "--micro-batch", "1", "--gpus-per-host", "1"]
    run("--measure", folder / "machine.json", *job, "--measure-seconds", "0.1")
    run("--machine", folder / "machine.json", *job, "--strategy", "no_shard", "--recompute", "none", "--json",
        folder / "cpu.json")
    found = found_in(folder / "cpu.json")[0]
    beside = found["resident_bytes"] - found["memory_bytes"]
    assert 1e6 < beside < 1e9 and found["step_s"] > 0, found
    done = subprocess.run([PLAN, "--machine", folder / "machine.json", *job[:4], "--seq", "128", "--micro-batch", "1", "--strategy",
                           "no_shard", "--recompute", "none"], capture_output=True, text=True, timeout=60)
    assert "operations were not measured" in done.stderr and done.stderr.count("\n") == 1, done.stderr
    message = run("--measure", folder / "x.json", "--model", "llama-3.1-8b", "--gpus-per-host", "256", code=2)
    assert "--measure: 256 processes need" in message and message.count("\n") == 1, message


def check_measured_gpu(folder):
    """A measured GPU keeps the links of the flags and the published peak."""
    cpu = json.loads((folder / "machine.json").read_text())
    gpu = dict(cpu, kind="cuda", device="NVIDIA H100 80GB HBM3", memory_bytes=85 * 10**9, process_bytes=0)
    (folder / "gpu.json").write_text(json.dumps(gpu))
    job = ["--machine", folder / "gpu.json", "--model", "mistral-tiny", "--vocab", "256", "--seq", "64", "--micro-batch", "1",
           "--strategy", "full_shard", "--recompute", "none"]
    times = []
    for fabric in (["--hosts", "2"], ["--hosts", "2", "--inter", "1x100G"], ["--gpus-per-host", "1"]):
        run(*job, *fabric, "--json", folder / "gpu-plan.json")
        found = found_in(folder / "gpu-plan.json")[0]
        times.append(found["step_s"])
        assert 0 < found["mfu"] < 1e-2, found  # the times are a CPU's
    assert times[1] > times[0], times
    (folder / "new.json").write_text(json.dumps(dict(gpu, device="NVIDIA H20")))
    other = ["--machine", folder / "new.json", *job[2:]]
    assert "no data sheet is known: add --gpu" in run(*other, code=2)
    run(*other, "--gpu", "A100", "--json", folder / "gpu-plan.json")
    assert found_in(folder / "gpu-plan.json")[0]["mfu"] > 1e-4  # relative to the measured peak
    for flags, text in ((["--gpu", "A100"], "was measured on NVIDIA H100"), (["--inter", "pigeons", "--hosts", "2"], "pigeons")):
        message = run(*job, *flags, code=2)
        assert text in message and message.count("\n") == 1, message
    for flag in ("--intra", "--inter", "--topology"):
        value = "hgx-h100x16" if flag == "--topology" else "NVLink"
        message = run("--machine", folder / "machine.json", flag, value, code=2)
        assert f"{flag} has no effect beside --machine" in message and message.count("\n") == 1, message
    done = subprocess.run([PLAN, "--measure", folder / "x.json", "--device", "cuda", "--model", "mistral-tiny"],
                          env=dict(os.environ, CUDA_VISIBLE_DEVICES=""), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "sees no GPU" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def check_wrong(folder):
    for flags, code, text in (
            (["--gpu", "abacus"], 2, "unknown GPU \"abacus\""),
            (["--model", "nonsense"], 2, "nonsense"),
            (["--strategy", "abc"], 2, "--strategy: abc not in {auto,no_shard,"),
            (["--strategy", "ddp"], 2, "--strategy: ddp: use no_shard"),
            (["--strategy", "3"], 2, "--strategy: 3: use full_shard"),
            (["--dtype", "torch.bfloat16"], 2, "use bf16"),
            (["--dtype", "fp8"], 2, "use --fp8, beside --dtype bf16"),
            (["--ranks", "8"], 2, "did you mean --hosts and --gpus-per-host?"),
            (["--world-size", "8"], 2, "did you mean --hosts and --gpus-per-host?"),
            (["--num-gpus", "8"], 2, "did you mean --gpus-per-host (of one host)?"),
            (["--nproc-per-node", "8"], 2, "did you mean --gpus-per-host (of one host)?"),
            (["--zero-stage", "3"], 2, "did you mean --strategy?"),
            (["--tp", "2"], 2, "use nothing in its place: atoll has no tensor or pipeline parallelism"),
            (["--model", "Mistral-7B"], 2, "there is no such preset or file; did you mean mistral-7b?"),
            (["--memory", "abc"], 2, "--memory: abc is not a number, or has another unit than gib, g, gb"),
            (["--tokens", "1X"], 2, "--tokens: 1X is not a number, or has another unit than k, m, g, b, t"),
            (["--json", "--quiet"], 2, "--json: needs a file, but --quiet follows"),
            (["--hosts", "-1"], 2, "--hosts"),
            (["--hosts", "2", "--busbw", "5000"], 2, "only 400 GB/s"),
            (["--price", "2"], 2, "--price requires --tokens"),
            (["--peak", "100"], 2, "--peak, --memory and --bandwidth: give all three"),
            (["--gpu", "A100", "--fp8"], 2, "no products in fp8 on A100"),
            (["--fp8", "--dtype", "f32"], 2, "--fp8 needs --dtype bf16"),
            (["--fp8", "--framework", "pytorch-eager"], 2, "for --framework atoll only"),
            (["--lora-rank", "20000"], 2, "the rank must be in [1, 10000]"),
            (["--measured-one-host", "5"], 2, "--measured-one-host needs"),
            (["--seq", "16777215", "--micro-batch", "64"], 2, "too many"),
            (["--seq", "16777216"], 2, "--seq"),
            (["--busbw", "nan"], 2, "--busbw: nan must be at least 0"),
            (["--tokens", "inf"], 2, "--tokens: inf must be at least 0"),
            (["--attention", "flash"], 2, "flash not in {fused,eager}"),
            (["--gpu", "l40"], 2, "did you mean L40S?"),
            (["--dtype", "fp4"], 2, "fp4 not in {bf16,f32,auto}"),
            (["--inter", "1000x400G"], 2, "inter \"1000x400G\" is unknown"),
            (["--hosts", "2", "--mesh", "3x8", "--strategy", "full_shard"], 2, "does not have the 16 ranks"),
            (["--hosts", "2", "--mesh", "3x8", "--strategy", "hybrid_shard"], 2, "does not have the 16 ranks"),
            (["--hosts", "2", "--global-batch", "7"], 2, "the nearest: 16"),
            (["--hosts", "512", "--growth", "--global-batch", "1024"], 2, "the nearest: 4096; or --hosts 128"),
            (["--hosts", "3", "--global-batch", "100"], 2, "the nearest: 96 and 120"),
            (["--nodes", "3", "word"], 2, "--nodes 3: there is no such flag; did you mean --hosts?"
             "\n  unexpected argument: word"),
            (["--gradient_checkpointing"], 2, "did you mean --recompute full?"),
            (["--gpu", "A100X"], 2, "unknown GPU \"A100X\" (did you mean A100?); known are"),
            (["--gpu", "H100-PCIe", "--intra", "NVLink"], 2, "is unknown for H100-PCIe"),
            (["--strategy", "hybrid_shard", "--gpus-per-host", "2"], 2, "hybrid strategies need several hosts"),
            (["--measured", "100", "--html", folder / "x"], 2, "--measured excludes --html"),
            (["--measure", folder / "x", "--curve", "x"], 2, "--curve excludes --measure"),
            (["--threads", "2"], 2, "--threads requires --measure"),
            (["--machine", folder / "machine.json", "--gpu", "H100"], 2, "--gpu has no effect beside --machine"),
            (["--global-batch", "64", "--micro-batches", "2"], 2, "--global-batch excludes --micro-batches"),
            (["--hidden", "100", "--heads", "3"], 2, "not a multiple of 3 heads"),
            (["--layers", "0"], 2, "--layers: 0 must be above 0"),
            (["--vocab", "0"], 2, "--vocab"),
            (["--gpu", "RTX A1000"], 2, "unknown GPU \"RTX A1000\""),
            (["--global-batch", "34359738376"], 2, "more than 1048576 micro batches"),
            (["--top", "0"], 2, "--top"),
            (["--gpu", "L40S", "--intra", "NVLink"], 2,
             "the rate of intra \"NVLink\" is unknown for L40S: use the GB/s of a ring, as in --intra 300"),
            (["--inter", "pigeons", "--hosts", "2"], 2, "pigeons"),
            (["--recompute", "some"], 2, "--recompute: some not in {none,selective,full,auto}"),
            (["--prefetch", "9"], 2, "--prefetch: 9 not in {0,1,2,"),
            (["--framework", "jax"], 2, "--framework: jax not in {atoll,pytorch-eager,pytorch-compile}"),
            (["--topology", "hgx-nothing"], 2, "hgx-nothing"),
            (["--measured", "100"], 2, "candidates"),
            (["--explain", folder / "absent.json", "--strategy", "full_shard", "--micro-batch", "1", "--recompute", "none"],
             1, "absent.json"),
            (["--machine", __file__], 1, "not whole JSON: wrong or cut off at byte 0"),
            (["--html", folder / "no" / "x.html", "--micro-batch", "1"], 1, "--html"),
            (["--no-such-flag"], 2, "--no-such-flag")):
        done = subprocess.run([PLAN, *map(str, flags)], capture_output=True, text=True, timeout=60)
        assert done.returncode == code, f"{flags}: exit code {done.returncode}: {done.stderr}"
        message = done.stderr
        lines = [line for line in message.splitlines() if line and not line.startswith("Run with --help")]
        assert len(lines) == 1 + text.count("\n") and text in message, f"{flags}: {message}"


with tempfile.TemporaryDirectory() as name:
    root = pathlib.Path(name)
    check_assumptions(root)
    check_gpus_and_models(root)
    check_progress(root)
    check_table(root)
    check_page(root)
    check_lanes(root)
    check_explanation(root)
    check_advice(root)
    check_curves(root)
    check_measure(root)
    check_measured_gpu(root)
    check_wrong(root)
    check_advice_on_memory(root)
print("atoll-plan: assumptions, GPUs and models, progress, table, page, explanation, advice, curves, measured machines and wrong input")
