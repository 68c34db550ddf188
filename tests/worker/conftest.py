"""One torch thread for all tests, since small networks run fastest on one."""

import torch

torch.set_num_threads(1)
