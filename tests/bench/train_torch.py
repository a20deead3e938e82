"""PyTorch's side of train_bench: a GPT-2 like ours, trained for a few steps with
DistributedDataParallel over Gloo where WORLD_SIZE is more than 1. Prints the median of the steps'
tokens per second, over all ranks."""
import argparse
import math
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

options = argparse.ArgumentParser()
for name, default in (("layers", 6), ("heads", 6), ("width", 384), ("context", 256),
                      ("vocab", 256), ("batch", 8), ("steps", 5), ("threads", 1)):
    options.add_argument(f"--{name}", type=int, default=default)
options.add_argument("--bf16", action="store_true")
o = options.parse_args()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(o.width, 3 * o.width)
        self.proj = nn.Linear(o.width, o.width)
        # A buffer of bools cannot be broadcast over Gloo; this one is never sent.
        self.mask = torch.ones(o.context, o.context).tril().view(1, 1, o.context, o.context) == 0

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, o.heads, C // o.heads).transpose(1, 2)
                   for y in self.qkv(x).split(C, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(C // o.heads))
            y = F.softmax(scores.masked_fill(self.mask, float("-inf")), dim=-1) @ v
        return self.proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(o.width), nn.LayerNorm(o.width)
        self.attention = Attention()
        self.expand, self.contract = (nn.Linear(o.width, 4 * o.width),
                                      nn.Linear(4 * o.width, o.width))
        try:
            self.gelu = nn.GELU(approximate="tanh")
        except TypeError:
            self.gelu = nn.GELU()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.contract(self.gelu(self.expand(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(o.vocab, o.width)
        self.positions = nn.Embedding(o.context, o.width)
        self.layers = nn.ModuleList(Layer() for _ in range(o.layers))
        self.norm = nn.LayerNorm(o.width)
        self.head = nn.Linear(o.width, o.vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, o.vocab), targets.view(-1))


torch.set_num_threads(o.threads)
torch.manual_seed(1)
world = int(os.environ.get("WORLD_SIZE", "1"))
model = Gpt()
step_of = model
if world > 1:
    dist.init_process_group("gloo")
    step_of = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
times = []
for step in range(o.steps + 2):
    tokens = torch.randint(o.vocab, (o.batch, o.context))
    targets = torch.randint(o.vocab, (o.batch, o.context))
    begin = time.perf_counter()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=o.bf16):
        loss = step_of(tokens, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss.item()
    times.append(time.perf_counter() - begin)
if int(os.environ.get("RANK", "0")) == 0:
    print(world * o.batch * o.context / statistics.median(times[2:]))
