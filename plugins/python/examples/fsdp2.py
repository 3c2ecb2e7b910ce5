"""Trains a small transformer with FSDP2 over atoll, on CPUs or on GPUs:

    torchrun --nproc-per-node 4 fsdp2.py
    torchrun --nproc-per-node 4 fsdp2.py --backend gloo --steps 20

Prints loss and tokens/s of every step.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import atoll.torch


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        result: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return result


class Transformer(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block(width, width // 64) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="atoll", help="atoll, gloo or nccl")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--rows", type=int, default=2, help="rows of a rank in a step")
    parser.add_argument("--bf16", action="store_true",
                        help="compute in bf16; gradients are reduced in f32")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group(f"{device}:{args.backend}")
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    mesh = atoll.torch.device_mesh(device)  # replicate x shard, as the machines suggest
    if mesh["replicate"].size() == 1:
        mesh = mesh["shard"]

    torch.manual_seed(0)  # equal weights on all ranks
    model = Transformer(8192, args.width, args.layers, args.length).to(device)
    policy = (MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
              if args.bf16 else MixedPrecisionPolicy())
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    torch.manual_seed(1 + dist.get_rank())  # other data on every rank
    for step in range(args.steps):
        begin = time.perf_counter()
        ids = torch.randint(0, 8192, (args.rows, args.length + 1), device=device) // 64
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        tokens = args.rows * args.length * dist.get_world_size()
        if dist.get_rank() == 0:
            print(f"step {step} loss {mean.item():.6f} "
                  f"tokens/s {tokens / (time.perf_counter() - begin):.0f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
