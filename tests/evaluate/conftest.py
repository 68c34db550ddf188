"""Small networks run fastest on one thread; a folder with some of them."""

import torch
from exporting import room

__all__ = ["room"]
torch.set_num_threads(1)
