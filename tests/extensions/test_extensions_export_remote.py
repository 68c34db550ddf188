"""An exported network in transformers: generation, padding, caches, saving again. In processes without gpas_cli."""

from textwrap import indent
from typing import Any

import pytest
from exporting import Room, needs_transformers, run_alone
from goldens import golden_cases

pytestmark = [needs_transformers, pytest.mark.long]

CELLS = golden_cases("networks")["exported and loaded"]
LOAD = """
import json, logging, sys, warnings
sys.modules["gpas_cli"] = None
said = []
class Keep(logging.Handler):
    def emit(self, record): said.append(record.getMessage())
warnings.simplefilter("always")
warnings.showwarning = lambda message, *_: said.append(str(message))
import torch, transformers
transformers.logging.set_verbosity_warning()
transformers.logging.disable_default_handler()
transformers.logging.add_handler(Keep())
logging.getLogger().addHandler(Keep())
for other in ("torchao", "torchao.kernel.intmm"):  # which transformers imports, and which warns without a GPU
    logging.getLogger(other).setLevel(logging.ERROR)
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
torch.set_num_threads(1)
torch.set_grad_enabled(False)
def load(folder):
    network = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    return network, AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
"""
LOOK = """
said.clear()
network, words = load(folder)
prompts = [[5, 9, 40, 41, 7], [12, 30], [60, 61, 62]]
def greedy(row, steps=12):
    row = list(row)
    for _ in range(steps):
        row.append(int(network(torch.tensor([row]), use_cache=False).logits[0, -1].argmax()))
    return row
def generate(ids, **more):
    return network.generate(ids, do_sample=False, max_new_tokens=12, eos_token_id=None, **more)
alone = [greedy(row) for row in prompts]
one = [generate(torch.tensor([row])).tolist()[0] for row in prompts]
uncached = [generate(torch.tensor([row]), use_cache=False).tolist()[0] for row in prompts]
longest = max(map(len, prompts))
left = torch.tensor([[0] * (longest - len(row)) + row for row in prompts])
mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts])
batch = generate(left, attention_mask=mask).tolist()
continued = [row[longest:] for row in batch]
padded = network(left, attention_mask=mask).logits
error = max(
    float((padded[i, longest - len(row):] - network(torch.tensor([row])).logits[0]).abs().max())
    for i, row in enumerate(prompts)
)
right = torch.tensor([row + [0] * (longest - len(row)) for row in prompts])
behind = network(right, attention_mask=mask.flip(1)).logits
error = max([error] + [float((behind[i, :len(r)] - network(torch.tensor([r])).logits[0]).abs().max())
                       for i, r in enumerate(prompts)])
beams = network.generate(left, attention_mask=mask, num_beams=3, do_sample=False, max_new_tokens=6).shape[1]
static = generate(left, attention_mask=mask, cache_implementation="static", disable_compile=True).tolist() if (
    int(transformers.__version__.split(".")[0]) > 4) else batch
steps = network(torch.tensor([prompts[0]]), output_hidden_states=True)
last = network(torch.tensor([prompts[0]]), logits_to_keep=1).logits if "plain" not in folder else steps.logits[:, -1:]
found.append({
    "class": type(network).__name__, "said": list(said), "alone": alone, "one": one, "uncached": uncached,
    "continued": continued, "error": error, "beams": beams - longest, "static": static == batch,
    "states": len(steps.hidden_states), "last": float((last[0, 0] - steps.logits[0, -1]).abs().max()),
    "ids": [network.config.eos_token_id, network.config.pad_token_id, network.generation_config.eos_token_id,
            network.generation_config.pad_token_id, words.eos_token_id, words.pad_token_id],
    "text": words.decode(network.generate(**words("gate norm", return_tensors="pt"), max_new_tokens=4)[0]),
})
"""
SAVE = """
said.clear()
ids = torch.tensor([[5, 9, 40, 41, 7, 8]])
before = network(ids).logits
network.save_pretrained(f"{folder}-again")
words.save_pretrained(f"{folder}-again")
again, words = load(f"{folder}-again")
same = network.generation_config.to_dict() == again.generation_config.to_dict()
network.train()
with torch.enable_grad():
    network(ids, labels=ids).loss.backward()
found[-1]["saved"] = {
    "said": list(said), "equal": bool((again(ids).logits == before).all()), "class": type(again).__name__,
    "generation": same, "trained": all(weight.grad is not None for weight in network.parameters()),
}
"""
SCRIPT = f"{LOAD}\nfound = []\nfor folder in sys.argv[1:]:\n{indent(LOOK + SAVE, '    ')}\nprint(json.dumps(found))"
CLASSES = {name: "LlamaForCausalLM" if name == "plain" else "GpasForCausalLM" for name in CELLS}


@pytest.fixture(scope="module")
def seen(room: Room) -> dict[str, Any]:
    """Return the findings of a process about each exported cell."""
    for name, values in CELLS.items():
        room.export(room.cell(**values), f"remote-{name}")
    folders = [room.folder / "out" / f"remote-{name}" for name in CELLS]
    return dict(zip(CELLS, run_alone(room.folder, SCRIPT, *folders), strict=True))


@pytest.mark.parametrize("name", CELLS)
def test_generation_is_the_argmax_of_repeated_passes_whatever_the_padding(seen: dict[str, Any], name: str) -> None:
    report = seen[name]
    assert report["class"] == CLASSES[name]
    assert report["one"] == report["uncached"] == report["alone"]
    assert len({tuple(row[-12:]) for row in report["alone"]}) > 1
    assert report["beams"] > 0
    assert report["continued"] == [row[-12:] for row in report["alone"]]  # with padding on the left
    assert report["error"] < 1e-4  # with padding on either side
    assert report["static"]


@pytest.mark.parametrize("name", CELLS)
def test_it_loads_without_a_warning_and_knows_its_special_tokens(seen: dict[str, Any], name: str) -> None:
    report = seen[name]
    assert report["said"] == []
    assert report["ids"] == [1, 0] * 3
    assert report["text"].startswith("gate norm")
    assert report["states"] == 5
    assert report["last"] < 1e-5


def test_the_code_in_the_model_card_runs(room: Room) -> None:
    names = ("mix", "plain")
    script = f"import os, json\nfound = []\nos.chdir({str(room.folder / 'out')!r})\n"
    for name in names:
        room.export(room.cell(**CELLS[name]), f"card-{name}")
        card = (room.folder / f"out/card-{name}/README.md").read_text()
        script += card.split("```python\n")[1].split("```")[0] + "found.append(type(model).__name__)\n"
    assert run_alone(room.folder, f"{script}print(json.dumps(found))") == [CLASSES[name] for name in names]


@pytest.mark.parametrize("name", CELLS)
def test_saved_and_loaded_again_it_is_the_same_and_can_be_trained(seen: dict[str, Any], room: Room, name: str) -> None:
    same = {"said": [], "equal": True, "generation": True, "trained": True, "class": CLASSES[name]}
    assert seen[name]["saved"] == same
    assert (room.folder / f"out/remote-{name}-again/modeling_gpas.py").exists() == (name != "plain")
