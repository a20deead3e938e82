"""PyTorch's side of ckpt_bench: for each line of stdin, the seconds that torch.save and torch's
distributed checkpoint take for as many bytes, synced; -1 where there is no such thing."""
import importlib
import os
import shutil
import sys
import time

import torch

FileSystemWriter = None
for package in ("torch.distributed.checkpoint", "torch.distributed._shard.checkpoint"):
    try:
        module = importlib.import_module(package)
        FileSystemWriter, save_state_dict = module.FileSystemWriter, module.save_state_dict
        break
    except Exception as error:  # Debian 12's does not load with its Python
        print(f"{package}: {error}", file=sys.stderr)


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def plain(state, place):
    name = os.path.join(place, "torch.pt")
    torch.save(state, name + ".tmp")
    sync(name + ".tmp")
    os.rename(name + ".tmp", name)
    sync(place)


def distributed(state, place):
    folder = os.path.join(place, "torch")
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
    save_state_dict(state, FileSystemWriter(folder), no_dist=True)
    for name in os.listdir(folder):
        sync(os.path.join(folder, name))
    sync(folder)
    sync(place)


def timed(save, state, place):
    begin = time.perf_counter()
    try:
        save(state, place)
    except Exception as error:
        print(f"{save.__name__}: {error}", file=sys.stderr)
        return -1
    return time.perf_counter() - begin


def main():
    elements, place = int(sys.argv[1]) // 12, sys.argv[2]
    state = {slot: torch.full((elements,), 0.5) for slot in ("weight", "m", "v")}
    for _ in sys.stdin:
        both = timed(plain, state, place), -1
        if FileSystemWriter:
            both = both[0], timed(distributed, state, place)
        print(*both, flush=True)


main()
