#!/usr/bin/env python3
"""GPT-2 in PyTorch over a folder with model.safetensors and config.json, as transformers reads it.

    gpt2_torch.py logits FOLDER TEXT < REFERENCE   compares with lines of 256 logits, one a byte
    gpt2_torch.py make FOLDER                      writes such a folder, with F16 and BF16 tensors

The file is read by the format's description, without the safetensors package; the model is written
from the definition of GPT-2, with the names and shapes of Hugging Face's checkpoints.
"""

import json
import os
import sys

import torch
import torch.nn.functional as F

TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def load(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        blob = bytearray(f.read())
    length = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8:8 + length])
    assert header.pop("__metadata__")["format"] == "pt"  # transformers insists on it
    tensors = {}
    for name, t in header.items():
        begin, end = (8 + length + at for at in t["data_offsets"])
        tensors[name] = torch.frombuffer(blob[begin:end], dtype=TYPES[t["dtype"]]).reshape(t["shape"])
    with open(os.path.join(folder, "config.json")) as f:
        return tensors, json.load(f)


def logits(p, config, tokens):
    width, heads, layers = config["n_embd"], config["n_head"], config["n_layer"]
    assert config["activation_function"] == "gelu_new" and config["model_type"] == "gpt2"
    p = {name[len("transformer."):]: tensor.double() for name, tensor in p.items()}
    t = len(tokens)
    assert t <= config["n_positions"] and p["wte.weight"].shape == (config["vocab_size"], width)
    mask = torch.ones(t, t, dtype=torch.bool).tril()

    def norm(x, name):
        return F.layer_norm(x, (width,), p[name + ".weight"], p[name + ".bias"],
                            eps=config["layer_norm_epsilon"])

    def conv1d(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    x = p["wte.weight"][tokens] + p["wpe.weight"][:t]
    for i in range(layers):
        h = f"h.{i}."
        q, k, v = (part.reshape(t, heads, width // heads).transpose(0, 1)
                   for part in conv1d(norm(x, h + "ln_1"), h + "attn.c_attn").split(width, dim=1))
        scores = (q @ k.transpose(1, 2)) / (width // heads) ** 0.5
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        x = x + conv1d((weights @ v).transpose(0, 1).reshape(t, width), h + "attn.c_proj")
        x = x + conv1d(F.gelu(conv1d(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh"),
                       h + "mlp.c_proj")
    return norm(x, "ln_f") @ p["wte.weight"].T


def compare(folder, text):
    """The reference is f32 and this is f64: they agree within the rounding of a few hundred sums."""
    mine = logits(*load(folder), torch.tensor(list(text.encode())))
    theirs = torch.tensor([[float(x) for x in line.split()] for line in sys.stdin],
                          dtype=torch.float64)
    assert mine.shape == theirs.shape, (mine.shape, theirs.shape)
    apart = (mine - theirs).abs().max().item()
    size = mine.abs().max().item()
    print(f"{mine.numel()} logits up to {size:.3f}: at most {apart:.2e} apart")
    assert size > 0.01, "weights that do nothing prove nothing"
    assert apart < 1e-5 * max(size, 1)


def make(folder):
    """Random weights as transformers' save_pretrained would leave them, of three types."""
    torch.manual_seed(1)
    c, layers, context = 24, 2, 16
    shapes = {"wte.weight": (256, c), "wpe.weight": (context, c)}
    for i in range(layers):
        h = f"h.{i}."
        shapes.update({
            h + "ln_1.weight": (c,), h + "ln_1.bias": (c,),
            h + "attn.c_attn.weight": (c, 3 * c), h + "attn.c_attn.bias": (3 * c,),
            h + "attn.c_proj.weight": (c, c), h + "attn.c_proj.bias": (c,),
            h + "ln_2.weight": (c,), h + "ln_2.bias": (c,),
            h + "mlp.c_fc.weight": (c, 4 * c), h + "mlp.c_fc.bias": (4 * c,),
            h + "mlp.c_proj.weight": (4 * c, c), h + "mlp.c_proj.bias": (c,)})
    shapes.update({"ln_f.weight": (c,), "ln_f.bias": (c,)})
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for i, (name, shape) in enumerate(sorted(shapes.items())):
        dtype = list(TYPES)[i % 3]
        tensor = (torch.randn(shape) * 0.3 + (1 if name.endswith("ln_1.weight") else 0))
        raw = bytes(tensor.to(TYPES[dtype]).contiguous().view(torch.uint8).flatten().tolist())
        header["transformer." + name] = {"dtype": dtype, "shape": list(shape),
                                         "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    os.makedirs(folder)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"model_type": "gpt2", "activation_function": "gelu_new", "n_layer": layers,
                   "n_head": 3, "n_embd": c, "n_positions": context, "vocab_size": 256,
                   "layer_norm_epsilon": 1e-05}, f)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2])
    else:
        compare(sys.argv[2], sys.argv[3])
