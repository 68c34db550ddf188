"""Make small networks of transformers at run time, so that what measures networks can be tried without a download.

They are trained for a few hundred updates to predict the next token of the standard library's source files, like the
quickstart's cells, and are kept in the cache.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from gpas_cli.data import disk
from gpas_cli.data.loader import Batches
from gpas_cli.data.prepare import Corpus, prepare
from gpas_cli.data.tokenizer import EOS
from gpas_cli.spec.data import CORPORA
from gpas_cli.spec.network import Network

_BATCH_ROWS = 16
_RATE = 2e-3
_WARMUP = 0.1  # share of the updates
_CLIP = 1.0
_TEXT = "quickstart"


def made_folder(network: Network, cache: Path, root: Path, notify: Callable[[str], None]) -> Path:
    """Return the folder of a network with `made`, after making it unless the cache has it. Raises DataError."""
    home = cache / "networks" / disk.digest(network.identity())
    folder = home / "network"
    ready = folder / "config.json"
    with disk.locked(home, ready.is_file):
        if not ready.is_file():
            notify(f"training a small {network.made}")
            corpus = prepare(CORPORA[_TEXT], network.vocab, cache, root=root)
            made = _trained(network, corpus)
            unfinished = folder.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            made.save_pretrained(unfinished)
            _save_tokenizer(corpus, unfinished)
            unfinished.rename(folder)
    return folder


def _trained(network: Network, corpus: Corpus) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {
        "num_hidden_layers": network.layers,
        "hidden_size": network.hidden,
        "intermediate_size": network.ffn,
        "num_attention_heads": network.heads,
        "num_key_value_heads": network.heads,
        "vocab_size": network.vocab,
        "max_position_embeddings": 4 * CORPORA[_TEXT].length,
        "is_decoder": True,  # otherwise BERT's attention sees later tokens
        "bos_token_id": None,
        "eos_token_id": corpus.tokenizer.eos_id,
        "tie_word_embeddings": False,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(network.seed)
        made = AutoModelForCausalLM.from_config(AutoConfig.for_model(network.made, **shape))
    made.eval()  # without dropout
    optimizer = torch.optim.AdamW(made.parameters(), lr=_RATE, weight_decay=0.0)
    warmup = max(1, round(_WARMUP * network.updates))
    batches = Batches(corpus.train, _BATCH_ROWS, network.seed)
    for update in range(network.updates):
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min((update + 1) / warmup, 1 - update / network.updates)
        batch = batches.at(update)
        logits = made(input_ids=torch.from_numpy(batch.inputs), use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), torch.from_numpy(batch.targets).flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(made.parameters(), _CLIP)
        optimizer.step()
    return made


def _save_tokenizer(corpus: Corpus, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=corpus.tokenizer.backend, eos_token=EOS).save_pretrained(folder)
