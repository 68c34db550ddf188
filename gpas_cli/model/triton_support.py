"""Whether the package's Triton kernels run here."""

from __future__ import annotations

import functools
import warnings

import torch

from gpas_cli.errors import first_line


@functools.cache
def has_triton(device: torch.device) -> bool:
    """Return whether `device` is a GPU on which Triton's kernels compile and run. Warns with the reason if they do not.

    CUDA builds of torch for Linux bring triton, which needs a C compiler and Python's headers.
    """
    if device.type != "cuda":
        return False
    try:
        from gpas_cli.model.triton_dots import launch

        ones = torch.ones(2, device=device)
        launch([(ones, ones)])
    except Exception as error:  # its class depends on what is missing
        warnings.warn(f"Triton's kernels are not used, which makes training slower: {first_line(error)}", stacklevel=2)
        return False
    return True
