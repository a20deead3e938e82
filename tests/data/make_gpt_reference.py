#!/usr/bin/env python3
"""Computes gpt_reference.json with PyTorch, in f64: what the engine's GPT-2 is tested against.

    python3 make_gpt_reference.py > gpt_reference.json

The model is written here on its own, from the definition of GPT-2, with the names and shapes of
Hugging Face's checkpoints. Weights and tokens come from an integer formula that the C++ test
repeats (tests/unit/gpt_reference.h), and are exact in f32. Of every gradient and every trained
weight the file keeps a summary: the norm, the products with three noise vectors, and some elements.
"""

import json

import torch
import torch.nn.functional as F

LAYERS, HEADS, WIDTH, CONTEXT, VOCAB, BATCH = 2, 2, 32, 16, 65, 3
LR, BETAS, EPS, WEIGHT_DECAY, CLIP, STEPS = 1e-2, (0.9, 0.95), 1e-4, 0.1, 1.75, 5


def noise(seed, n):
    """n numbers in [-0.5, 0.5), multiples of 2^-16."""
    mask = 0xFFFFFFFF
    out = []
    for i in range(n):
        x = (i * 2654435761 + seed * 2246822519) & mask
        x ^= x >> 15
        x = (x * 2246822519) & mask
        x ^= x >> 13
        x = (x * 3266489917) & mask
        x ^= x >> 16
        out.append((x >> 16) / 65536 - 0.5)
    return out


def parameters():
    c = WIDTH
    shapes = [("wte.weight", (VOCAB, c)), ("wpe.weight", (CONTEXT, c))]
    for i in range(LAYERS):
        h = f"h.{i}."
        shapes += [
            (h + "ln_1.weight", (c,)), (h + "ln_1.bias", (c,)),
            (h + "attn.c_attn.weight", (c, 3 * c)), (h + "attn.c_attn.bias", (3 * c,)),
            (h + "attn.c_proj.weight", (c, c)), (h + "attn.c_proj.bias", (c,)),
            (h + "ln_2.weight", (c,)), (h + "ln_2.bias", (c,)),
            (h + "mlp.c_fc.weight", (c, 4 * c)), (h + "mlp.c_fc.bias", (4 * c,)),
            (h + "mlp.c_proj.weight", (4 * c, c)), (h + "mlp.c_proj.bias", (c,)),
        ]
    shapes += [("ln_f.weight", (c,)), ("ln_f.bias", (c,))]
    params = {}
    for index, (name, shape) in enumerate(shapes):
        w = torch.tensor(noise(index + 1, torch.Size(shape).numel()), dtype=torch.float64)
        # Matrices of the size that training would reach, gains around 1, the rest around 0.
        w = w.reshape(shape) * (0.5 if len(shape) > 1 else 0.25)
        if "ln_" in name and name.endswith("weight"):
            w = w + 1
        params["transformer." + name] = w.requires_grad_()
    return params


def batch():
    n = BATCH * CONTEXT
    tokens = [int((x + 0.5) * VOCAB) for x in noise(1001, n)]
    targets = [int((x + 0.5) * VOCAB) for x in noise(1002, n)]
    targets = [-1 if i % 7 == 3 else t for i, t in enumerate(targets)]
    shape = (BATCH, CONTEXT)
    return torch.tensor(tokens).reshape(shape), torch.tensor(targets).reshape(shape)


def logits(params, tokens):
    p = {k[len("transformer."):]: v for k, v in params.items()}
    b, t = tokens.shape
    head = WIDTH // HEADS
    mask = torch.ones(t, t, dtype=torch.bool).tril()

    def norm(x, name):
        return F.layer_norm(x, (WIDTH,), p[name + ".weight"], p[name + ".bias"], eps=1e-5)

    def linear(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    x = p["wte.weight"][tokens] + p["wpe.weight"][:t]
    for i in range(LAYERS):
        h = f"h.{i}."
        q, k, v = (part.reshape(b, t, HEADS, head).transpose(1, 2)
                   for part in linear(norm(x, h + "ln_1"), h + "attn.c_attn").split(WIDTH, dim=2))
        scores = (q @ k.transpose(2, 3)) / head**0.5
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        x = x + linear((weights @ v).transpose(1, 2).reshape(b, t, WIDTH), h + "attn.c_proj")
        y = F.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh")
        x = x + linear(y, h + "mlp.c_proj")
    return norm(x, "ln_f") @ p["wte.weight"].T


def loss_sum(params, tokens, targets):
    out = logits(params, tokens).reshape(-1, VOCAB)
    return F.cross_entropy(out, targets.reshape(-1), ignore_index=-1, reduction="sum")


def summary(tensor):
    x = tensor.detach().reshape(-1)
    n = x.numel()
    dots = [torch.dot(x, torch.tensor(noise(2000 + k, n), dtype=torch.float64)).item()
            for k in range(3)]
    return {"size": n, "norm": x.norm().item(), "dots": dots,
            "elements": [x[n * k // 8].item() for k in range(8)]}


def main():
    tokens, targets = batch()
    count = int((targets >= 0).sum())

    params = parameters()
    loss = loss_sum(params, tokens, targets)
    loss.backward()
    result = {
        "config": {"layers": LAYERS, "heads": HEADS, "width": WIDTH, "context": CONTEXT,
                   "vocab": VOCAB, "batch": BATCH},
        "loss": loss.item(),
        "count": count,
        "logits": {"position": 11, "values": logits(params, tokens)[0, 11].tolist()},
        "gradients": {name: summary(p.grad) for name, p in params.items()},
    }

    params = parameters()
    decayed = [p for p in params.values() if p.dim() > 1]
    others = [p for p in params.values() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": WEIGHT_DECAY},
                                   {"params": others, "weight_decay": 0.0}],
                                  lr=LR, betas=BETAS, eps=EPS)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        mean = loss_sum(params, tokens, targets) / count
        mean.backward()
        losses.append(mean.item())
        norms.append(torch.nn.utils.clip_grad_norm_(params.values(), CLIP).item())
        optimizer.step()
    result["training"] = {
        "lr": LR, "beta1": BETAS[0], "beta2": BETAS[1], "eps": EPS, "weight_decay": WEIGHT_DECAY,
        "clip": CLIP, "losses": losses, "grad_norms": norms,
        "weights": {name: summary(p) for name, p in params.items()},
    }
    print(json.dumps(result, indent=1))


main()
