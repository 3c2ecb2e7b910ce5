"""The peer of gpu_vs_pytorch: training steps of Mistral from transformers with FSDP2 over one rank."""
import argparse, json, os, pathlib, sys, time

import torch
import transformers
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def matrix_peak(device):
    """Returns the rate of bf16 products of random matrices in FLOP/s."""
    best = 0.0
    for n in (4096, 8192) if device.type == "cuda" else (512,):
        a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
        for _ in range(4):
            synchronize(device)
            start = time.perf_counter()
            for _ in range(4):
                a @ b
            synchronize(device)
            best = max(best, 4 * 2 * n**3 / (time.perf_counter() - start))
    return best


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def build(args, device):
    config = transformers.AutoConfig.from_pretrained(args.config)
    config.use_cache = False
    torch.manual_seed(0)
    with device:
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    if args.recompute == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        if args.compile:
            layer.compile()
        # A single rank has no parameters to reshard after forward.
        fully_shard(layer, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mp_policy=policy, reshard_after_forward=False)
    if args.compile:
        model.loss_function = torch.compile(model.loss_function)
    return config, model


def main():
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--config", required=True)
    flags.add_argument("--seq", type=int, required=True)
    flags.add_argument("--rows", type=int, required=True)
    flags.add_argument("--recompute", choices=["none", "full"], default="none")
    flags.add_argument("--compile", action="store_true")
    flags.add_argument("--warmup", type=int, default=5)
    flags.add_argument("--steps", type=int, default=20)
    flags.add_argument("--device", choices=["cuda", "host"], default="cuda")
    flags.add_argument("--json", required=True)
    args = flags.parse_args()
    if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < (4, 56):
        sys.exit(f"transformers {transformers.__version__}: 4.56 or later is needed")
    device = torch.device("cuda", 0) if args.device == "cuda" else torch.device("cpu")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("nccl" if args.device == "cuda" else "gloo", store=store, rank=0, world_size=1)
    peak = matrix_peak(device)
    if args.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    config, model = build(args, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=args.device == "cuda")
    ids = torch.randint(0, config.vocab_size, (args.warmup + args.steps, args.rows, args.seq), device=device)
    seen = torch.ones_like(ids[0])
    losses = []

    def step(batch):
        # The attention mask is all ones, which transformers drops and replaces by causal attention.
        # Without a mask, transformers 4.54 to 4.57 builds a mask itself, which keeps SDPA from
        # using its fast kernels.
        loss = model(input_ids=batch, attention_mask=seen, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())

    for batch in ids[: args.warmup]:
        step(batch)
    synchronize(device)
    start = time.perf_counter()
    for batch in ids[args.warmup :]:
        step(batch)
    synchronize(device)
    seconds = (time.perf_counter() - start) / args.steps
    memory, reserved = 0, 0
    if args.device == "cuda":
        memory, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    pathlib.Path(args.json).write_text(json.dumps(dict(
        step_s=seconds, peak_memory_bytes=memory, reserved_memory_bytes=reserved, matrix_peak_flops=peak,
        loss=float(losses[-1]), torch=torch.__version__, transformers=transformers.__version__,
        cudnn=torch.backends.cudnn.version())))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
