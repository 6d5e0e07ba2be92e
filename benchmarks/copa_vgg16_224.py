"""How far the ranks of VGG16's convolutions at 224×224 go within a given work, layer by layer.

The network is torchvision's VGG16 with a single fully connected layer behind its convolutions, so
that memory goes to them. Prints n, the rank or its bracket, the method, CPU seconds and the peak
memory of the process so far. ``--work`` is what a layer may cost, in billions of floating-point
operations, and stands for a limit on time.

Run as ``python benchmarks/copa_vgg16_224.py --threads 1 --work 2000``.
"""

import argparse
from fnmatch import fnmatchcase

import torch
from copa_speed import observed, print_ranks
from torch import nn

from gradaudit.models.building import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=float, default=2000.0)
    parser.add_argument("--layer", default="*", help="glob of the convolutions to measure")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = load_model("torchvision:vgg16")
    model.classifier = nn.Linear(512 * 7 * 7, 10)
    print(f"{arguments.threads} thread(s), work {arguments.work:g} GFLOP a layer")
    seen = [pair for pair in observed(model, 224) if fnmatchcase(pair[1].layer, arguments.layer)]
    print_ranks(seen, 1e9 * arguments.work)


if __name__ == "__main__":
    main()
