"""PyTorch's side of gpt_bench: the same GPT-2 with torch.compile, bf16 autocast, its fused attention
and its fused AdamW. usage: gpt_torch.py 124M|1.5B SEQUENCES STEPS"""
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

name, sequences, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
layers, heads, width = {"124M": (12, 12, 768), "1.5B": (48, 25, 1600)}[name]
context, vocab = 1024, 50304


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, heads, C // heads).transpose(1, 2)
                   for y in self.qkv(self.norm1(x)).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.contract(F.gelu(self.expand(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).view(-1, vocab), targets.view(-1))


torch.set_float32_matmul_precision("high")
torch.manual_seed(1)
model = Gpt().cuda()
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
                              fused=True)
tokens, targets = torch.randint(50257, (2, sequences, context), device="cuda")
times = []
for step in range(steps + 5):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = compiled(tokens, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    times.append(time.perf_counter() - begin)
median = statistics.median(times[5:])
print(f"PyTorch {torch.__version__}, compiled, GPT-2 {name}, bf16, {sequences} x {context} tokens: "
      f"{1e3 * median:.1f} ms a step, {sequences * context / median:.0f} tokens/s")
