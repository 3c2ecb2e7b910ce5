"""The peer of gpu_vs_pytorch: training steps of Mistral from transformers on one GPU.

Uses FSDP2 over one rank or, with --plain, no FSDP, and bf16 weights with f32 copies for AdamW. Calls the layers one by
one, so that it passes no attention mask: transformers reads a mask on the host, so the host would wait for the GPU.
Without a mask, SDPA is causal.
"""
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


class Trainee(torch.nn.Module):
    """The decoder and its loss, without the code of transformers that builds masks."""

    def __init__(self, lm, compiled):
        super().__init__()
        self.lm = lm
        self.loss = torch.compile(self.mean_loss) if compiled else self.mean_loss

    @staticmethod
    def mean_loss(logits, ids):
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())

    def forward(self, ids):
        model = self.lm.model
        hidden = model.embed_tokens(ids)
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        turns = model.rotary_emb(hidden, positions)
        for layer in model.layers:
            out = layer(hidden, attention_mask=None, position_ids=positions, use_cache=False, position_embeddings=turns)
            hidden = out[0] if isinstance(out, tuple) else out
        return self.loss(self.lm.lm_head(model.norm(hidden)), ids)


def build(args, device):
    config = transformers.AutoConfig.from_pretrained(args.config)
    config.use_cache = False
    torch.manual_seed(0)
    with device:
        lm = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    if args.recompute == "full":
        lm.gradient_checkpointing_enable({"use_reentrant": False})
    lm.train()
    trainee = Trainee(lm, args.compile)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in lm.model.layers:
        if args.compile:
            layer.compile(mode="max-autotune-no-cudagraphs" if args.tune else None)
        if not args.plain:
            # A single rank has no parameters to reshard after forward.
            fully_shard(layer, mp_policy=policy, reshard_after_forward=False)
    if not args.plain:
        fully_shard(trainee, mp_policy=policy, reshard_after_forward=False)
    return config, trainee


class PlainAdamW:
    """AdamW on f32 copies of weights that are bf16 for forward and backward."""

    def __init__(self, trainee, **options):
        self.weights = list(trainee.parameters())
        self.masters = [weight.detach().clone() for weight in self.weights]
        for weight in self.weights:
            weight.data = weight.data.to(torch.bfloat16)
        self.adamw = torch.optim.AdamW(self.masters, **options)

    @torch.no_grad()
    def step(self):
        grads = [torch.empty_like(master) for master in self.masters]
        torch._foreach_copy_(grads, [weight.grad for weight in self.weights])
        for master, weight, grad in zip(self.masters, self.weights, grads):
            master.grad, weight.grad = grad, None
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.adamw.step()
        self.adamw.zero_grad()
        torch._foreach_copy_(self.weights, self.masters)


class ShardedAdamW:
    def __init__(self, trainee, **options):
        self.weights = list(trainee.parameters())
        self.adamw = torch.optim.AdamW(self.weights, **options)

    def step(self):
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.adamw.step()
        self.adamw.zero_grad()


def main():
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--config", required=True)
    flags.add_argument("--seq", type=int, required=True)
    flags.add_argument("--rows", type=int, required=True)
    flags.add_argument("--recompute", choices=["none", "full"], default="none")
    flags.add_argument("--compile", action="store_true", help="compile each layer and the loss with torch.compile")
    flags.add_argument("--plain", action="store_true", help="without FSDP2")
    flags.add_argument("--tune", action="store_true", help="let Inductor time matrix products, which takes minutes")
    flags.add_argument("--warmup", type=int, default=5)
    flags.add_argument("--steps", type=int, default=20)
    flags.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
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
    config, trainee = build(args, device)
    optimizer = (PlainAdamW if args.plain else ShardedAdamW)(trainee, lr=1e-4, fused=True)
    ids = torch.randint(0, config.vocab_size, (args.warmup + args.steps, args.rows, args.seq), device=device)
    losses = []

    def step(batch):
        loss = trainee(batch)
        loss.backward()
        optimizer.step()
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
        loss=float(losses[-1]), losses=[float(loss) for loss in losses], torch=torch.__version__,
        transformers=transformers.__version__, cudnn=torch.backends.cudnn.version())))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
