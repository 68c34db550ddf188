"""Compare the Triton kernel with torch. Run under TRITON_INTERPRET=1, or on a GPU, where it also compiles them."""

import itertools

import torch

from gpas_cli.data.loader import IGNORED
from gpas_cli.train import loss, triton_cross_entropy
from gpas_cli.train.loss import _softmax_gradients_by_torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def same_gradients(dtype: torch.dtype, exact: torch.dtype, vocab: int, z_loss: float, wanted: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = (4 * torch.randn(7, vocab, generator=generator)).to(DEVICE, dtype)
    logits[3, 5] = -torch.inf
    if vocab > 64:
        logits[5, :64] = -torch.inf  # the whole first block: of masked logits
    targets = torch.tensor([0, vocab - 1, -100, 5, 17, vocab - 2, 2]).to(DEVICE)
    targets[3] = 4
    expected = logits.clone()
    scratch = expected if exact == dtype else expected.to(exact)
    chosen = _softmax_gradients_by_torch(expected, targets, scratch, z_loss, wanted)
    found = launched(logits, targets, exact, z_loss, wanted)
    assert found.dtype == exact
    # A unit in the last place of a probability near 1; that of a log-probability is up to 32 times as large. The
    # interpreter truncates to bfloat16 where a GPU rounds.
    unit = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-22, torch.float64: 2.0**-50}
    torch.testing.assert_close(found, chosen, rtol=0, atol=32 * unit[exact])
    if not wanted:
        return
    slope = 1 + 2 * z_loss * 20
    torch.testing.assert_close(logits, expected, rtol=0, atol=2 * slope * max(unit[dtype], unit[exact]))


def launched(
    logits: torch.Tensor, targets: torch.Tensor, exact: torch.dtype, z_loss: float, wanted: bool
) -> torch.Tensor:
    """Launch the kernel on `logits`, and on rows that are wider, whose further columns become zero."""
    vocab = logits.shape[1]
    wider = torch.full((len(logits), vocab + 24), 50.0, device=DEVICE, dtype=logits.dtype)
    wider[:, :vocab] = logits
    found = triton_cross_entropy.launch(logits, targets, exact, z_loss, wanted, vocab)
    also = triton_cross_entropy.launch(wider, targets, exact, z_loss, wanted, vocab)
    assert torch.equal(found, also)
    assert torch.equal(wider[:, :vocab], logits)
    assert bool((wider[:, vocab:] == (0 if wanted else 50)).all())
    return found


def same_head(precision: str) -> None:
    """Compare the head's loss and gradients on this GPU with those on the processor, over several chunks."""
    generator = torch.Generator().manual_seed(3)
    hidden, head = (torch.randn(n, 64, generator=generator) for n in (3000, 1001))
    targets = torch.randint(-1, 1001, (3000,), generator=generator)
    targets[targets < 0] = IGNORED
    loss._CHUNK_LOGITS = loss.GPU_LOGITS = 2**19
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    ours, theirs = (
        loss._chunked(hidden.to(d), head.to(d), targets.to(d), dtype, wanted=True, z_loss=1e-3) for d in (DEVICE, "cpu")
    )
    tolerance = {"bf16": 2**-7, "fp32": 1e-5}[precision]  # logits up to 30 are rounded by 2e-6
    for a, b in zip(ours, theirs, strict=True):
        found = float((a.cpu() - b).abs().max() / b.abs().max())
        assert found <= tolerance, f"{precision}: off by {found:.2g} of the largest"


def main() -> None:
    """Compare every case; raise AssertionError at the first that differs."""
    triton_cross_entropy._BLOCK = 64  # several blocks for a row, the last one not full
    bf16, fp32 = torch.bfloat16, torch.float32
    dtypes = [(fp32, fp32), (bf16, fp32), (bf16, bf16), (torch.float64, torch.float64)]
    for (dtype, exact), vocab, z_loss, wanted in itertools.product(dtypes, (40, 200), (0.0, 0.125), (True, False)):
        same_gradients(dtype, exact, vocab, z_loss, wanted)
    triton_cross_entropy._BLOCK = 8192
    if DEVICE.type == "cuda":
        same_head("fp32")
        same_head("bf16")


if __name__ == "__main__":
    main()
