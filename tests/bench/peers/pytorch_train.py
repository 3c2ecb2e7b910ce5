"""The peer of train_vs_pytorch: one rank that trains a decoder of transformers with FSDP2 over gloo on the CPU.

The variants differ only in speed: --compile compiles each layer with torch.compile; --head chunked computes logits,
loss and their gradients for 512 tokens at a time, as atoll does, instead of keeping the logits of the whole batch;
--optimizer selects an implementation of AdamW. With --write-init FOLDER, it writes random initial weights and ends.
"""
import argparse, json, os, pathlib, sys, time

try:
    import numpy
    import safetensors.torch
    import torch
    import transformers
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError as missing:
    print(f"missing: {missing}")
    sys.exit(77)

CHUNK = 512


class ChunkedLoss(torch.autograd.Function):
    """Mean cross entropy of hidden @ weight^T. Forward also computes the gradients, so no logits are kept."""

    @staticmethod
    def forward(ctx, hidden, weight, labels):
        scale = 1.0 / labels.numel()
        hidden_grad = torch.empty_like(hidden)
        weight_grad = torch.zeros(weight.shape, dtype=torch.float32)
        loss = torch.zeros(())
        for start in range(0, labels.numel(), CHUNK):
            part, targets = hidden[start:start + CHUNK], labels[start:start + CHUNK]
            logits = torch.nn.functional.linear(part, weight)
            logs = torch.log_softmax(logits, 1, dtype=torch.float32)
            loss -= logs.gather(1, targets[:, None]).sum()
            slope = logs.exp_()
            slope[torch.arange(len(targets)), targets] -= 1
            slope = slope.mul_(scale).to(hidden.dtype)
            torch.mm(slope, weight, out=hidden_grad[start:start + CHUNK])
            if weight.dtype == torch.float32:
                weight_grad.addmm_(slope.t(), part)
            else:
                weight_grad += slope.t() @ part
        ctx.save_for_backward(hidden_grad, weight_grad.to(weight.dtype))
        return loss * scale

    @staticmethod
    def backward(ctx, slope):
        hidden_grad, weight_grad = ctx.saved_tensors
        return hidden_grad * slope.to(hidden_grad.dtype), weight_grad * slope.to(weight_grad.dtype), None


def whole_loss(logits, labels):
    return torch.nn.functional.cross_entropy(logits.float(), labels)


class Trainee(torch.nn.Module):
    def __init__(self, lm, chunked, compiled):
        super().__init__()
        self.lm, self.chunked = lm, chunked
        self.whole = torch.compile(whole_loss) if compiled else whole_loss

    def forward(self, ids, labels):
        hidden = self.lm.model(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)
        if self.chunked:
            return ChunkedLoss.apply(hidden, self.lm.lm_head.weight, labels.flatten())
        return self.whole(self.lm.lm_head(hidden), labels.flatten())


def make_model(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)


def write_init(folder):
    lm = make_model(folder)
    weights = {name: tensor.contiguous() for name, tensor in lm.state_dict().items()}
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})


def prepare(args):
    lm = make_model(args.folder)
    lm.load_state_dict(safetensors.torch.load_file(args.folder / "model.safetensors"))
    lm.train()
    trainee = Trainee(lm, args.head == "chunked", args.compile)
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    policy = bf16 if args.dtype == "bf16" else MixedPrecisionPolicy()
    for layer in lm.model.layers:
        if args.compile:
            layer.compile()
        fully_shard(layer, mp_policy=policy, reshard_after_forward=True)
    fully_shard(trainee, mp_policy=policy)
    return trainee


def main():
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--folder", type=pathlib.Path, required=True, help="config.json and model.safetensors")
    flags.add_argument("--write-init", action="store_true")
    flags.add_argument("--tokens", help="file of uint16 ids: all rows of a step, and one more id")
    flags.add_argument("--seq", type=int)
    flags.add_argument("--rows", type=int, help="rows per rank")
    flags.add_argument("--dtype", choices=["f32", "bf16"])
    flags.add_argument("--threads", type=int, default=1)
    flags.add_argument("--compile", action="store_true")
    flags.add_argument("--head", choices=["whole", "chunked"], default="chunked")
    flags.add_argument("--optimizer", choices=["fused", "foreach"], default="fused")
    flags.add_argument("--lr", type=float)
    flags.add_argument("--clip", type=float)
    flags.add_argument("--weight-decay", type=float)
    flags.add_argument("--steps", type=int, help="with warm-up")
    flags.add_argument("--json")
    args = flags.parse_args()
    transformers.logging.set_verbosity_error()
    if args.write_init:
        return write_init(args.folder)
    torch.set_num_threads(args.threads)
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    ids = torch.from_numpy(numpy.fromfile(args.tokens, dtype=numpy.uint16).astype(numpy.int64))
    mine = slice(rank * args.rows, (rank + 1) * args.rows)
    inputs, labels = (part.view(-1, args.seq)[mine].contiguous() for part in (ids[:-1], ids[1:]))
    trainee = prepare(args)
    optimizer = torch.optim.AdamW(trainee.parameters(), lr=args.lr, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=args.weight_decay, **{args.optimizer: True})
    losses, seconds, cpu_seconds = [], [], []
    torch.distributed.barrier()
    for _ in range(args.steps):
        start, cpu_start = time.perf_counter(), time.process_time()
        loss = trainee(inputs, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainee.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().float())
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    means = torch.stack(losses)
    torch.distributed.all_reduce(means)
    if rank == 0:
        pathlib.Path(args.json).write_text(json.dumps(dict(
            seconds=seconds, cpu_seconds=cpu_seconds, losses=(means / ranks).tolist(), torch=torch.__version__,
            transformers=transformers.__version__)))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
