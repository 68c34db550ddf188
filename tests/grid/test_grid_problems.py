"""Every mistake has a message with its line and column; all mistakes of a file are reported at once."""

import time

import pytest
from grids import HEAD, cells, complaints, grid, read, whole

BASE = "base: {size: quickstart, data: quickstart}\n"
STAGE = "stages: [pretrain, importance]\n"

# The body starts on line 5, column 5. Each case: body, place, words of the message.
MISTAKES = {
    "unknown grid key": (BASE + "axis: {}", "6:5", "grids.g.axis: unknown key 'axis'; did you mean 'axes'?"),
    "unknown setting": ("base: {sise: 71m}", "5:12", "unknown setting 'sise'; did you mean 'size'?"),
    "unknown axis": (BASE + "axes: {gait.x: [1]}", "6:12", "unknown setting 'gait'; did you mean 'gate'?"),
    "bad dotted axis": (BASE + "axes: {gate..x: [1]}", "6:12", "is not a dotted path"),
    "control character": (BASE + 'title: "a\\e[2J"', "6:12", "has the control character U+001B; write plain text"),
    "control character in a key": (BASE + '"ti\\u009btle": a', "6:5", "the key has the control character U+009B"),
    "reversed text": (BASE + 'title: "a\\u202eb"', "6:12", "has the control character U+202E"),
    "lines of a partition": (BASE + 'resources: {partition: "a\\nb"}', "6:28", "is more than one line"),
    "limits of a partition": (BASE + "resources: {partition: [short time<=soon, long]}", "6:28",
        "resources.partition: 'time<=soon' is no limit of a partition; write gpus=0, gpus<=4"),
    "no partition for a job": (BASE + "resources: {partition: [short gpus<=4], gpus: 8, cpus: 8}", "6:28",
        "resources.partition: the job keeps the limits of none of them; write a last one without limits"),
    "lines of a tag": (BASE + 'notes: [{where: {}, tags: ["a\\nb"]}]', "6:32", "is more than one line"),
    "an empty note": (BASE + "notes: [{where: {}}]", "6:13", "needs 'text' or 'tags'"),
    "a note on no cell": (BASE + "notes: [{where: {norm: post}, text: x}]", "6:28", "'post' is not a value of this"),
    "lines of an sbatch option": (BASE + 'resources: {sbatch: ["--x=1\\nb"]}', "6:25", "is more than one line"),
    "lines of a path": ('base: {size: quickstart, data: {path: "a\\nb"}}', "5:43", "data.path: is more than one line"),
    "lines of a name": (BASE + 'axes: {norm: [{name: "a\\nb", scheme: pre}]}', "6:26", "name: is more than one line"),
    "size missing, table by size": ("base: {data: quickstart}\ntable: {rows: [norm]}", "4:3", "size: is required"),
    "size without a label": (
        "base: {size: {hidden: 8, ffn: 8, heads: 2, layers: 2, vocab: 300}, data: quickstart, "
        "optim: {lr: 1, warmup: 1, steps: 2, batch: 1}}\ntable: {rows: [norm]}",
        "6:12",
        "the size at e.yaml:5:18 has no label; add `name: ...` to it",
    ),
    "fraction of a step": (cells(**{"optim.steps": "[600.5]"}), "6:26", "600.5 is not a whole number"),
    "seed is null": (BASE + "axes: {seed: [null]}", "6:19", "null is not a whole number"),
    "seed is true": (BASE + "axes: {seed: [true]}", "6:19", "true is not a whole number"),
    "axis is a mapping": (BASE + "axes: {gate: {like: gpas}}", "6:18", "a mapping is not a list; write [...]"),
    "large seed": (BASE + "axes: {seed: [3000000000]}", "6:19", "is too large; at most 2147483647"),
    "axis is no list": (BASE + "axes: {seed: 1}", "6:18", "'1' is not a list; write [1]"),
    "empty axis": (BASE + "axes: {seed: []}", "6:18", "is an empty list"),
    "value twice": (BASE + "axes: {seed: [1, 1.0]}", "6:22", "the value '1.0' is listed twice"),
    "unequal zip": (BASE + "axes: {zip: {seed: [1], norm: [pre, lns]}}", "6:17", "seed has 1, norm has 2"),
    "axis in axes and zip": (BASE + "axes: {seed: [1], zip: {seed: [2]}}", "6:11", "is listed as an axis twice"),
    "set twice": ("base: {size: quickstart, optim: {lr: 1}, optim.lr: 2}", "5:46", "is set twice"),
    "bad name": (BASE + "axes: {norm: [{name: [x], scheme: pre}]}", "6:26", "is not a string"),
    "base is no mapping": ("base: [1]", "5:11", "a list is not a mapping"),
    "where: unknown axis": (cells(seed="[1]") + "\nexclude: [{sed: 1}]", "7:16", "no axis 'sed'; did you mean 'seed'?"),
    "where: unknown label": (cells(seed="[1, 2]") + "\nexclude: [{seed: 3}]", "7:22",
        "'3' is not a value of this axis; valid: 1, 2"),
    "where: empty list": (cells(seed="[1, 2]") + "\nexclude: [{seed: []}]", "7:22", "is an empty list"),
    "where: empty exclusion": (cells(seed="[1, 2]") + "\nexclude: [{}]", "7:15", "excludes every cell"),
    "table: columns of two axes": (
        cells(seed="[1, 2]", norm="[pre, lns]") + "\ntable: {rows: [norm], columns: {A: {seed: 1}, B: {norm: pre}}}",
        "7:36",
        "table.columns: has labels on norm and seed; the columns have one axis",
    ),
    "table: unknown label of a row": (cells(norm="[pre, lns]") + "\ntable: {rows: {A: {norm: [pre, lnss]}}}", "7:36",
        "table.rows.A.norm: 'lnss' is not a value of this axis; did you mean 'lns'?"),
    "table: unknown axis of a band": (cells(norm="[pre, lns]") + "\ntable: {rows: [norm], bands: {A: {nurm: pre}}}",
        "7:39", "table.bands.A.nurm: no axis 'nurm'; did you mean 'norm'?"),
    "table: digits": (cells() + "\ntable: {digits: two}", "7:21", "table.digits: 'two' is not a whole number"),
    "exclude matches nothing": (
        cells(seed="[1, 2]", gate="[none, gpas]") + "\nwhen: [{where: {gate: gpas}, axes: {gate.site: [home]}}]\n"
        "exclude: [{gate: none, gate.site: home}]",
        "8:15",
        "the condition matches no cell",
    ),
    "override matches nothing": (
        cells(seed="[1, 2]") + "\nexclude: [{seed: 1}]\noverride: [{where: {seed: 1}, set: {optim.lr: 1.0}, why: x}]",
        "8:24", "the condition matches no cell"),
    "everything excluded": (cells(seed="[1]") + "\nexclude: [{seed: 1}]", "4:3", "every cell is excluded"),
    "override without set": (BASE + "override: [{why: x}]", "6:16", "needs 'set'"),
    "override without why": (BASE + "override: [{set: {seed: 1}}]", "6:16", "needs 'why'"),
    "override of nonsense": (BASE + "override: [{set: {sed: 1}, why: x}]", "6:23", "did you mean 'seed'?"),
    "when without axes": (BASE + "when: [{where: {}}]", "6:12", "needs 'axes'"),
    "unknown include": (BASE + "include: [h]", "6:15", "no grid 'h'"),
    "include itself": (BASE + "include: [g]", "6:15", "the includes form a cycle: g -> g"),
    "include without grid": (BASE + "include: [{where: {}}]", "6:15", "needs 'grid'"),
    "no cells": ("title: x", "4:3", "has no cells: it needs"),
    "unknown stage": (BASE + "stages: [pretrain, fintune]", "6:24",
        "unknown stage 'fintune'; did you mean 'finetune'?"),
    "no pretraining": (BASE + "stages: [finetune]", "6:13", "needs the stage 'pretrain'"),
    "cadence": (BASE + "cadence: {eval_every: 0}", "6:27", "0 is too small; at least 1"),
    "cadence key": (BASE + "cadence: {eval_evry: 1}", "6:15", "did you mean 'eval_every'?"),
    "watch": (BASE + "watch: {patience: 0}", "6:23", "0 is too small; at least 1"),
    "watch key": (BASE + "watch: {spikes: 4}", "6:13", "did you mean 'spike'?"),
    "resources": (BASE + "resources: {cpus: many}", "6:23", "'many' is not a whole number"),
    "memory": (BASE + "resources: {mem: 10X}", "6:22", "resources.mem: '10X' is not an amount of memory; write 10G"),
    "memory without a unit": (BASE + "resources: {mem: 32}", "6:22",
        "resources.mem: '32' has no unit; write 32G, or 32M for megabytes"),
    "quoted memory without a unit": (BASE + "resources: {mem: '32'}", "6:22", "'32' has no unit; write 32G"),
    "memory of attempts without a unit": (BASE + "resources: {mem: [32, 64]}", "6:22", "'32' has no unit; write 32G"),
    "memory of a core without a unit": (BASE + "resources: {sbatch: [--mem-per-cpu=4]}", "6:25",
        "--mem-per-cpu: '4' has no unit; write 4G"),
    "disk without a unit": (BASE + "resources: {sbatch: [--tmp=10]}", "6:25", "--tmp: '10' has no unit; write 10G"),
    "shortest time without a unit": (BASE + "resources: {sbatch: [--time-min=60]}", "6:25", "--time-min: '60' has no"),
    "time without a unit": (BASE + "resources: {time: 90}", "6:23",
        "'90' has no unit; write 90:00:00 for hours, or 0:90:00 for minutes"),
    "quoted time without a unit": (BASE + "resources: {time: '90'}", "6:23", "'90' has no unit; write 90:00:00 for"),
    "time of minutes and seconds": (BASE + "resources: {time: 4:00}", "6:23",
        "'4:00' has no unit; write 4:00:00 for hours, or 0:4:00 for minutes"),
    "time of a stage without a unit": (BASE + STAGE + "resources: {importance: {time: [30, 60]}}", "7:36",
        "'30' has no unit; write 30:00:00 for hours, or 0:30:00 for"),
    "notice as long as the time limit": (BASE + "resources: {time: '0:03:00', notice: 180}", "6:42",
        "180 s is not shorter than the time limit of 0:03:00"),
    "time": (BASE + "resources: {time: abc}", "6:23", "'abc' is not a time limit; write H:MM:SS or D-HH"),
    "memory of attempts": (BASE + "resources: {mem: [32G, 64X]}", "6:22", "'64X' is not an amount of memory"),
    "memory of one attempt": (BASE + "resources: {mem: [32G]}", "6:22", "write at least two, or one value: mem: 32G"),
    "no memory of attempts": (BASE + "resources: {mem: []}", "6:22", "write at least two, or one value"),
    "more entries than attempts": (BASE + "resources: {mem: [1G, 2G], retries: 1}", "6:22", "write retries: 2"),
    "unequal lists": (BASE + "resources: {mem: [32G, 64G], time: [1:00:00, 2:00:00, 3:00:00]}", "6:22",
        "has 2 entries, and the other list has 3; write as many"),
    "notice as long as the first time limit": (BASE + "resources: {time: ['0:02:00', '1:00:00']}", "6:16",
        "120 s is not shorter than the time limit of 0:02:00"),
    "number for a word": (BASE + "resources: {compile: 1}", "6:26", "unknown value '1'; valid: auto, on, off"),
    "number for a name": (BASE + "resources: {partition: 7}", "6:28", "7 is not a string or a list of strings; put it"),
    "resources key": (BASE + "resources: {partiton: gpu}", "6:17", "did you mean 'partition'?"),
    "sbatch option of ours": (BASE + "resources: {sbatch: [--array=0-3]}", "6:25", "use resources.at_once"),
    "sbatch signal": (BASE + "resources: {sbatch: [--signal=USR1@5]}", "6:25", "resources.notice"),
    "sbatch option with a command": (BASE + "resources: {sbatch: ['--x; rm -f /']}", "6:25",
        "write it as --name=value"),
    "processes on nodes": (BASE + "resources: {gpus: 1, nodes: 2}", "6:33", "cannot be spread evenly over 2 nodes"),
    "sbatch option in short": (BASE + "resources: {sbatch: [-p gpu]}", "6:25", "write it as --name=value"),
    "environment": (BASE + "resources: {environment: [A]}", "6:30", "'A' is not NAME=VALUE"),
    "environment with a value": (BASE + "resources: {environment: [A-B=c]}", "6:30", "'A-B' is not NAME=VALUE"),
    "ranks": (BASE + "resources: {gpus: 3}", "6:16", "16 rows cannot be shared evenly by 3 processes; nearest: 2"),
    "stage in resources": (BASE + "resources: {importanse: {cpus: 1}}", "6:17", "did you mean 'importance'?"),
    "resources key of a stage": (BASE + "resources: {importance: {cpu: 1}}", "6:30", "did you mean 'cpus'?"),
    "warning of a stage": (BASE + STAGE + "resources: {importance: {time: '0:01:00'}}", "7:29",
        "importance.notice: 120 s is not shorter"),
    "processes of a stage": (BASE + STAGE + "resources: {importance: {ranks: 2}}", "7:37",
        "a job of importance has one process"),
    "ranks of a stage": (BASE + "stages: [pretrain, finetune]\nresources: {finetune: {gpus: 3}}", "7:27",
        "resources.finetune: 16 rows cannot be shared evenly by 3 processes; nearest: 2"),
    "shards in one node": (BASE + "resources: {gpus: 4, strategy: hsdp}", "6:36", "the job has one node; set nodes"),
    "one shard in a node": (BASE + "resources: {gpus: 2, nodes: 2, strategy: hsdp}", "6:46",
        "has one process; set gpus"),
    "nodes": (BASE + "resources: {gpus: 4, nodes: 3}", "6:33", "4 processes cannot be spread evenly over 3 nodes"),
    "table key": (BASE + "table: {row: [norm]}", "6:13", "did you mean 'rows'?"),
    "table best": (BASE + "axes: {seed: [1, 2]}\ntable: {rows: [norm], best: nrm}", "7:33", "no axis 'nrm'; did you"),
    "table best of one": (BASE + "axes: {seed: [1, 2]}\ntable: {rows: [seed], best: norm}", "7:33", "has one value"),
    "table best of a row": (BASE + "table: {rows: [norm], best: norm}", "6:33", "is also in its rows"),
    "table row": (BASE + "table: {rows: [nrm]}", "6:19", "no axis 'nrm'; did you mean 'norm'?"),
    "table column": (BASE + "table: {columns: tusk}", "6:22", "no axis 'tusk'; did you mean 'task'?"),
    "table against": (BASE + "table: {against: {gate: gpas}}", "6:29", "'gpas' is not a value of this axis"),
    "table against a number in quotes": (BASE + "axes: {seed: [1, 2]}\ntable: {rows: [seed], against: {seed: '1'}}",
        "7:43", "write 1 without quotes"),
    "table against no row": (BASE + "table: {rows: [norm], against: {gate: none}}", "6:36", "'gate' is not one of the"),
    # what the cells themselves refuse, at the place it comes from
    "unknown size": ("base: {size: 72m}", "5:18", "size: unknown size '72m'; did you mean"),
    "no size": ("base: {data: quickstart}", "4:3", "size: is required"),
    "bad axis value": (cells(norm="[pre, prae]"), "6:24", "norm: unknown scheme 'prae'; did you mean 'pre'?"),
    "bad nested value": (cells(gate="[gpas, {name: t, like: gpas, activation: tahn}]"), "6:59",
        "gate.activation: unknown value 'tahn'; did you mean 'tanh'?"),
    "bad nested key": (cells(gate="[{name: t, like: gpas, activaton: tanh}]"), "6:41",
        "gate.activaton: unknown key 'activaton'; did you mean 'activation'?"),
    "bad dotted key": (cells(**{"optim.lrr": "[1, 2]"}), "6:12", "optim.lrr: unknown key 'lrr'; did you mean 'lr'?"),
    "bad like": (cells(gate="[{like: gpsa}]"), "6:19", "unknown gate 'gpsa'"),
    "a word for a boolean": (cells(**{"gate": "[gpas]", "gate.stop_gradient": "[true, off]"}), "6:53", "write false"),
    "a quoted number": (cells(**{"optim.lr": "['1e-3']"}), "6:23", "'1e-3' is not a number"),
    "a number for a word": (cells(norm="[1]"), "6:19", "unknown scheme 1"),
    "not finite": (cells(**{"optim.lr": "[.inf]"}), "6:23", "inf is not a finite number"),
    "dead gate": (cells(gate="[{like: gpas, activation: relu}]"), "6:44", "never changes"),
    "setting without gate": (cells(**{"gate": "[none, gpas]", "gate.share": "[sublayer]"}), "6:45", "gate is none"),
    "cross-field": (cells(**{"optim.warmup": "[600]"}), "6:27", "600 is not shorter than the 600 steps"),
    "override value": (BASE + "override: [{set: {optim.lr: -1}, why: x}]", "6:33", "-1.0 is too small"),
    "missing recipe": ("base: {size: 60m}", "5:18", "size 60m has no recipe; write optim: {lr: ..."),
    "rows of a finetuning": (BASE.replace("}", ", finetune: {batch: 5}}") + "resources: {gpus: 2}", "6:16",
        "5 rows cannot be shared evenly by 2 processes"),
    "lisa on shards": (BASE.replace("}", ", finetune: {}}") + "resources: {gpus: 2, strategy: fsdp}", "6:16",
        "set strategy: ddp, or method: full"),
    "stage is no mapping": (BASE.replace("}", ", finetune: lisa}"), "5:58", "is not a mapping of settings"),
    "two cells of one name": (cells(norm="[pre, {name: 'a b', scheme: lns}, {name: 'a/b', scheme: mix}]"), "4:3",
        "two cells have the name 'a_b'"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_in_a_grid_is_reported_once_at_its_position(case: str) -> None:
    body, place, message = MISTAKES[case]
    found = complaints(whole(body))
    assert len(found) == 1 or case == "missing recipe", found
    assert found[0].startswith(f"e.yaml:{place}: "), found
    assert message in found[0]


BAD_CELLS = "{norm: [prenorm], gate: [true], optim.lr: [-1]}"
OWN_MISTAKES = {
    "in base": "base: {size: quickstart, data: quickstart, lr: 1e-3}\naxes: CELLS",
    "in another axis": BASE + "axes: CELLS\nwhen: [{where: {norm: prae}, axes: {seed: [1]}}]",
    "in a list": BASE + "axes: CELLS\nstages: pretrain",
    "in a condition": BASE + "axes: CELLS\nexclude: [{nrm: pre}]",
    "in an override": BASE + "axes: CELLS\noverride: [{why: x}]",
    "an unknown key": BASE + "axes: CELLS\nincluded: [h]",
    "an include": BASE + "axes: CELLS\ninclude: [h]",
}


@pytest.mark.parametrize("case", OWN_MISTAKES)
def test_a_mistake_of_a_grid_does_not_hide_those_of_its_cells(case: str) -> None:
    said = "\n".join(complaints(whole(OWN_MISTAKES[case].replace("CELLS", BAD_CELLS) + "\ntable: {rows: [gte]}")))
    own = complaints(whole(OWN_MISTAKES[case].replace("CELLS", "{norm: [pre]}")))
    assert own
    assert all(mistake.partition(": ")[2].partition(";")[0] in said for mistake in own)
    for mistake in ("unknown scheme 'prenorm'", "unknown gate 'True'", "optim.lr: -1.0 is too small", "no axis 'gte'"):
        assert said.count(mistake) == 1, said


def test_a_grid_with_a_mistake_and_too_many_cells_is_not_expanded() -> None:
    many = BASE + "lr: 1\naxes: {seed: {range: [1, 9000]}, optim.lr: {linear: [0.1, 0.2], n: 9000}}"
    assert len(complaints(whole(many))) == 1


TOP = {
    "markup in a grid's name": (whole(BASE).replace("  g:", '  "[/x]":'), "4:3",
        "starts with a letter, a digit or _; write _x"),
    "long grid name": (whole(BASE).replace("  g:", f"  {'g' * 101}:"), "4:3", "at most 100 letters"),
    "grid name like an option": (whole(BASE).replace("  g:", "  --yes:"), "4:3", "write yes"),
    "not a mapping": ("[1]", "1:1", "a list is not a mapping"),
    "no version": ("grids: {g: {base: {size: 71m}}}", "1:1", "version: is required; write version: 1"),
    "other version": ("version: 2\ngrids: {g: {base: {size: 71m}}}", "1:10", "this version of gpas reads version 1"),
    "no grids": ("version: 1", "1:1", "grids: has no grid; declare at least one"),
    "unknown key": (HEAD.replace("recipes", "recipies") + "  g: {include: [g]}", "2:1", "did you mean 'recipes'?"),
    "unknown default": ("default: h\n" + whole(BASE), "1:10", "default: no grid 'h'; valid: g"),
    "recipe of no size": ("version: 1\nrecipes: {72m: {lr: 1}}\n", "2:11", "no size '72m'; did you mean"),
    "recipe key": ("version: 1\nrecipes: {71m: {lrr: 1}}\n", "2:17", "recipes.71m.lrr: unknown key 'lrr'"),
    "built-in size": ("version: 1\nsizes: {71m: {like: 9m}}\n", "2:9", "is built in; choose another name"),
    "size value": ("version: 1\nsizes: {x: {like: 9m, layers: 0}}\n", "2:31", "sizes.x.layers: 0 is too small"),
    "size start": ("version: 1\nsizes: {x: {like: 9n}}\n", "2:19", "unknown name '9n'; valid: 9m, 20m"),
    "corpus": ("version: 1\ncorpora: {x: {source: web}}\n", "2:23", "unknown value 'web'"),
    "mixture": ("version: 1\ncorpora:\n  a: {mixture: {b: 0.5, cc: 0.5}}\n  b: {source: stdlib}\n", "3:29",
        "corpora.a.mixture.cc: unknown data 'cc'; "),
    "resources": ("version: 1\nresources: {71m: {gpu: 1}}\n", "2:19", "did you mean 'gpus'?"),
    "resources of no size": ("version: 1\nresources: {cpus: 1}\n", "2:13", "'cpus'; write all: {cpus: ...}"),
    "resources of no stage": ("version: 1\nresources: {importanse: {cpus: 1}}\n", "2:13", "did you mean 'importance'?"),
    "resources of a stage": ("version: 1\nresources: {importance: {cpu: 1}}\n", "2:26", "did you mean 'cpus'?"),
    "value of a stage": ("version: 1\nresources: {tokenise: {cpus: 0}}\n", "2:30", "0 is too small"),
    "stage without settings": ("version: 1\nresources: {importance: 3}\n", "2:25", "'3' is not a mapping"),
}  # fmt: skip


@pytest.mark.whole
@pytest.mark.parametrize("case", TOP)
def test_a_mistake_outside_the_grids(case: str) -> None:
    text, place, message = TOP[case]
    found = [line for line in complaints(text) if message in line]
    assert len(found) == 1, complaints(text)
    assert found[0].startswith(f"e.yaml:{place}: ")


G = "  g: {base: {size: quickstart, data: quickstart}"
# Files, and words of each of their messages in order: a mistake is reported once, and what follows from it is not.
SEVERAL = {
    "of form and content, in any number of cells": (
        HEAD + G + ", axes: {norm: [pre, prae], seed: [1, 2, 3]}}\n" + G.replace("g:", "b:") + ", axs: {}}\n"
        "  c: {base: {size: quickstart, data: quickstart, optim.lr: fast}, axes: {seed: [1, 2]}}\n",
        ["e.yaml:5:51: ", "e.yaml:4:70: ", "e.yaml:6:60: "]),
    "of a grid that another includes": (
        whole(BASE + "axes: {norm: 3}") + "\n  h:\n    include: [g]\n    base: {size: quickstart, norm: prae}\n",
        ["'3' is not a list; write [3]", "unknown scheme 'prae'; did you mean 'pre'?"]),
    "setting of a recipe": (whole(BASE).replace("warmup:", "warm_up:"),
        ["recipes.quickstart.warm_up: unknown key 'warm_up'; did you mean 'warmup'?"]),
    "missing recipe": ("version: 1\ngrids:\n  a: {base: {size: 60m, data: quickstart, optim.steps: 9}, axes: {seed: "
        "[1, 2]}}\n", [": optim.lr: ", ": optim.warmup: "]),
    "section": (
        HEAD.replace("grids:", "gridz:") + G + ", axess: {norm: [pre]}}\n"
        "claims: {b: {statement: It is., grids: [g], subject: {norm: pre}, expect: {below: 1}}}\n",
        [": gridz: ", ": grids.g.axess: "]),
    "size and corpus": (
        "sizes: {tiny: {like: quickstart, layers: four}}\ncorpora: {mine: {source: web}}\n"
        + HEAD.replace("quickstart:", "tiny:") + "  g: {base: {size: tiny, data: mine}}\n",
        [": sizes.tiny.layers: ", ": corpora.mine.source: "]),
    "label of an included grid": (whole(cells(seed="[1]")) + "  b: {include: [{grid: g, where: {seed: 2}}]}\n",
        ["e.yaml:7:41: grids.b.include.where.seed: '2' is not a value of this axis; valid: 1"]),
    "axis of an included grid": (whole(cells(seed="[1]")) + "  b: {include: [{grid: g, where: {sead: 1}}]}\n",
        ["grid 'g' has no axis 'sead'; did you mean 'seed'?"]),
    "a cycle": (HEAD + "  a: {include: [b]}\n  b: {include: [c]}\n  c: {include: [a]}\n",
        [f"includes form a cycle: {one}" for one in ("a -> b -> c -> a", "b -> c -> a -> b", "c -> a -> b -> c")]),
    "an endless chain": (
        HEAD + "".join(f"  g{i}: {{include: [g{i + 1}]}}\n" for i in range(400)) + G.replace("g:", "g400:") + "}\n",
        ["e.yaml:4:18: grids.g0.include: the incl", *350 * ["the includes are nested more than 50 grids deep"]]),
}  # fmt: skip


@pytest.mark.parametrize("case", SEVERAL)
def test_mistakes_of_a_file_are_reported_at_once_and_once(case: str) -> None:
    text, words = SEVERAL[case]
    found = complaints(text)
    assert len(found) == len(words), found
    assert all(word in line for word, line in zip(words, found, strict=True)), found


def test_whole_numbers_may_have_exponents() -> None:
    (entry,) = grid(BASE[:-2] + ", optim.steps: 6e2, optim.warmup: 6.0e1}")
    assert (entry.cell.optim.steps, entry.cell.optim.warmup) == (600, 60)
    assert entry.key == grid(BASE)[0].key


@pytest.mark.parametrize("text", ["grids:\n\tg: 1\n", "grids:\n  g: 1\n\th: 2\n"])
def test_a_tab_in_the_indentation_is_named(text: str) -> None:
    (found,) = complaints(text)
    assert found.endswith("is not YAML: the line is indented with a tab; use spaces")


def test_titles_over_several_lines_become_one_and_shell_keeps_its_lines() -> None:
    text = 'title: >\n  Two\n  lines\nresources: {setup: ["a\\nb"]}\n' + BASE
    experiments = read(whole(text))
    assert experiments.grids["g"].title == "Two lines"
    assert experiments.grids["g"].resources.own.plain()["setup"] == ["a\nb"]


def test_ten_thousand_seeds_are_read_in_less_than_a_second() -> None:
    """The best of three, in seconds of processor time: the machine may be busy."""
    text = whole(BASE + f"axes: {{seed: [{', '.join(map(str, range(10_000)))}]}}")

    def seconds() -> float:
        before = time.process_time()
        assert len(read(text).grids["g"].axes[0].points) == 10_000
        return time.process_time() - before

    assert min(seconds() for _ in range(3)) < 1


@pytest.mark.parametrize(
    "beside",
    [
        "tabel: {}", "title: [1]", "cadence: {eval_evry: 1}", "watch: {patience: 0}", "resources: {cpus: many}",
        "table: {row: []}", "table: {rows: [nrom]}",
    ],
)  # fmt: skip
def test_a_mistake_beside_the_cells_hides_none_in_the_cells(beside: str) -> None:
    text = whole("base: {size: quickstart, data: quickstart, optim.lr: -1}\naxes: {gate: [gpass]}\n" + beside)
    found = complaints(text)
    assert [line.split(": ")[1].split(".")[0] for line in found] == ["grids", "gate", "optim"], found
