"""One torch thread for all tests, since small networks run fastest on one."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
