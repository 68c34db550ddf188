"""Whether the package's Triton kernels run here."""

from __future__ import annotations

import functools
import warnings

import torch


@functools.cache
def triton_works() -> bool:
    """Return whether Triton's kernels compile and run on this GPU; warn with the reason if they do not.

    CUDA builds of torch for Linux bring triton, which needs a C compiler and Python's headers.
    """
    try:
        from gpas_cli.model.triton_dots import launch

        ones = torch.ones(2, device="cuda")
        launch([(ones, ones)])
    except Exception as error:  # its class depends on what is missing
        reason = str(error).strip().splitlines()[0]
        warnings.warn(f"Triton's kernels are not used, which makes training slower: {reason}", stacklevel=2)
        return False
    return True
