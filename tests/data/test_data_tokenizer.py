"""Tokenizers: deterministic, lossless, with ids within the network's rows; all readers on bytes from outside."""

import gzip
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from cases import tables
from small_corpus import sentences
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from gpas_cli.data import hub
from gpas_cli.data import tokenizer as room
from gpas_cli.data.corpora import Survey, side
from gpas_cli.data.files import Files
from gpas_cli.data.objective import reader_of
from gpas_cli.data.records import files, read_records
from gpas_cli.data.text_documents import joined, read_text
from gpas_cli.data.tokenizer import MaskToken, Tokenizer, _head, absent_reason, make_tokenizer, train_bpe
from gpas_cli.errors import DataError
from gpas_cli.spec.parse_cell import cell_from

TEXTS = sentences(60)
SURVEY = Survey("0" * 16, "1" * 16)


def bpe(vocab: int = 320) -> Tokenizer:
    return Tokenizer(train_bpe(TEXTS, vocab), vocab, origin="test", local=True)


def words(tokens: list[str]) -> Backend:
    """Return a backend whose vocabulary is these words."""
    backend = Backend(models.WordLevel({token: n for n, token in enumerate(tokens)}, unk_token=tokens[0]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def test_bpe_is_deterministic_and_has_the_specials_of_t5():
    one, two = bpe(), bpe()
    assert one.identity == two.identity == hashlib.sha256(train_bpe(TEXTS, 320).to_str().encode()).hexdigest()
    assert [one.backend.token_to_id(t) for t in ("<pad>", "</s>", "<unk>")] == [0, 1, 2]
    assert (one.pad_id, one.eos_id, one.unk_id) == (0, 1, 2)
    assert one.backend.get_vocab_size() == 320
    assert bpe(300).identity != one.identity


@pytest.mark.parametrize(
    "text", [*TEXTS[:5], "def f(x):\n\treturn  x\r\n", "é数\U0001f600\x00", " leading", "</s><pad>"]
)
def test_bpe_round_trip_without_specials(text: str):
    ids = bpe().encode(text)
    assert bpe().decode(ids) == text
    assert not {0, 1, 2} & set(ids)


def test_a_vocabulary_smaller_than_the_bytes_is_refused():
    with pytest.raises(DataError, match="258 is too small for a byte-level BPE; at least 259"):
        train_bpe(TEXTS, 258)
    assert bpe(259).decode(bpe(259).encode("abc é")) == "abc é"


@pytest.mark.parametrize("limit", [2, 5, 16, 400])
def test_limited_documents_are_the_head_of_whole_ones(limit: int):
    tokenizer = bpe()
    for text, (ids, size) in zip(TEXTS, tokenizer.encode_documents(TEXTS, limit), strict=True):
        whole = tokenizer.encode(text)
        assert ids == [*whole[: limit - 1], 1]
        if len(whole) < limit:
            assert size == len(text.encode())
        else:
            # A multi-byte letter may be cut in half; its bytes are then counted whole.
            assert 0 <= size - len(tokenizer.decode(ids[:-1]).rstrip("�").encode()) <= 3


def test_a_cut_head_gives_the_same_ids_as_the_whole_text():
    draw = random.Random(3)
    texts = ["".join(draw.choice(["word", "a", " ", "  ", "\n", "\t", "é", ".", "'s", "9"]) for _ in range(300))
             for _ in range(50)]  # fmt: skip
    cutting = bpe()
    whole = Tokenizer(cutting.backend, 320, origin="test", local=False)
    assert cutting.encode_documents(texts, 20) == whole.encode_documents(texts, 20)


@pytest.mark.parametrize(
    ("text", "head"),
    [("a b c d", "a b"), ("  a  b\n c", "  a  b"), ("a b", "a b"), ("a b ", "a b "), ("", ""), ("  ", "  ")],
)
def test_head_ends_after_a_word(text: str, head: str):
    assert _head(text, 2) == head


def test_words_without_tokens_do_not_shorten_a_document():
    backend = words(["</s>", "a", "b", "<unk>"])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("#", "removed")]
    )
    tokenizer = Tokenizer(backend, 4, origin="test", local=True)
    assert tokenizer.encode_documents(["# # # # a b a"], 4)[0].ids == [1, 2, 1, 0]


def test_ids_beyond_the_vocabulary_become_unknown():
    backend = train_bpe(TEXTS, 320)
    backend.add_tokens([AddedToken("zzz", special=False)])
    tokenizer = Tokenizer(backend, 320, origin="test")
    assert 320 in backend.encode("the zzz").ids
    assert tokenizer.encode("the zzz")[-1] == 2
    for limit in (None, 8):
        ids = tokenizer.encode_documents(["zzz zzz"], limit)[0].ids
        assert ids.count(2) == 2
        assert max(ids) < 320


def test_ids_beyond_the_vocabulary_need_an_unknown_token():
    with pytest.raises(DataError, match=r"x\.json has 3 ids and the model's vocabulary only 2.*set size\.vocab to 3"):
        Tokenizer(words(["</s>", "a", "b"]), 2, origin="x.json")
    with pytest.raises(DataError, match=r"declares no end token, .* below 9; name it in tokenizer_config\.json"):
        Tokenizer(words(["a", "b"]), 9, origin="x.json")
    assert Tokenizer(words(["a", "<|endoftext|>"]), 9, origin="x.json").eos_id == 1


@pytest.mark.parametrize("declared", ["<stop>", {"__type": "AddedToken", "content": "<stop>"}])
def test_the_declared_end_token_comes_before_those_known_by_name(source: Files, tmp_path: Path, declared: object):
    def made() -> Tokenizer:
        return make_tokenizer("own/tokenizer.json", 9, source, SURVEY, tmp_path, root=tmp_path, notify=print)

    (tmp_path / "own").mkdir()
    words(["</s>", "a", "<stop>"]).save(str(tmp_path / "own/tokenizer.json"))
    by_name = made()
    (tmp_path / "own/tokenizer_config.json").write_text(json.dumps({"eos_token": declared}))
    own = made()
    assert (by_name.eos_id, own.eos_id, own.first_id) == (0, 2, 2)
    assert own.identity != by_name.identity  # a network that ended its texts with another token does not continue
    assert own.encode_documents(["a a"])[0].ids == [1, 1, 2]
    (tmp_path / "own/tokenizer_config.json").write_text('{"eos_token": null}')
    assert made().identity == by_name.identity
    for text, message in (
        ('{"eos_token": "<end>"}', "eos_token: the tokenizer has no token '<end>' below 9"),
        ("[]", "not the configuration of a tokenizer"),
    ):
        (tmp_path / "own/tokenizer_config.json").write_text(text)
        with pytest.raises(DataError, match=rf"tokenizer_config\.json: {message}"):
            made()


def test_bpe_is_trained_once_on_training_text_alone(source: Files, tmp_path: Path):
    said: list[str] = []
    survey = source.survey()

    def make(vocab: int = 320) -> Tokenizer:
        return make_tokenizer("bpe", vocab, source, survey, tmp_path / "c", root=tmp_path, notify=said.append)

    assert make().identity == make().identity
    assert said == [f"training a tokenizer of 320 ids on {source.pattern}"]
    make(330)
    assert len(list((tmp_path / "c" / "tokenizers").glob("*.json"))) == 2
    texts = [d.text for d in source.documents("train")]
    assert make().identity == hashlib.sha256(train_bpe(texts, 320).to_str().encode()).hexdigest()


def test_training_text_is_bounded(source: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read: list[str] = []
    monkeypatch.setattr(room, "_TRAINING_BYTES", 1000)
    monkeypatch.setattr(room, "train_bpe", lambda texts, vocab: read.extend(texts) or train_bpe(read, vocab))
    make_tokenizer("bpe", 300, source, SURVEY, tmp_path, root=tmp_path, notify=print)
    sizes = [len(text.encode()) for text in read]
    assert sum(sizes) >= 1000 > sum(sizes[:-1])


def test_a_very_long_word_does_not_slow_down_bpe_training(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x" * 1_000_000 + " y"}) + "\n")
    (text,) = room._first(Files("a.jsonl", "text", tmp_path).documents(side("a.jsonl:1")), 10)
    assert text.replace(" ", "") == "x" * 1_000_000 + "y"
    assert max(map(len, text.split())) == 1000


def test_a_tokenizer_json_of_the_users(source: Files, tmp_path: Path):
    def make(word: str, vocab: int = 320) -> Tokenizer:
        return make_tokenizer(word, vocab, source, SURVEY, tmp_path / "cache", root=tmp_path, notify=print)

    backend = train_bpe(TEXTS, 320)
    plain = backend.to_str()
    backend.enable_truncation(3)
    backend.enable_padding(length=64)
    backend.save(str(tmp_path / "mine.json"))
    tokenizer = make("mine.json")
    assert tokenizer.identity == hashlib.sha256(plain.encode()).hexdigest()
    assert tokenizer.encode(TEXTS[0]) == bpe().encode(TEXTS[0])
    with pytest.raises(DataError, match=r"'their\.json' is not one of bpe, t5, gpt2, nor a file"):
        make("their.json")
    (tmp_path / "broken.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(DataError, match=r"broken\.json: not a tokenizer\.json"):
        make("broken.json")


def gpt2_file(folder: Path) -> Path:
    """Write a tokenizer.json of GPT-2's form: byte-level merges, and the end of text as its last id."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=299, initial_alphabet=alphabet, show_progress=False)
    )
    backend.add_special_tokens(["<|endoftext|>"])
    backend.save(str(folder / "gpt2.json"))
    return folder / "gpt2.json"


def test_gpt2_is_fetched_once_and_ends_documents_with_its_own_token(source, tmp_path, monkeypatch):
    there = gpt2_file(tmp_path)
    asked = []
    monkeypatch.setattr(hub, "download", lambda repo, name, revision, kind: asked.append((repo, name)) or there)

    def make(vocab: int = 300):
        return make_tokenizer("gpt2", vocab, source, SURVEY, tmp_path / "c", root=tmp_path, notify=print)

    tokenizer = make()
    assert make().identity == tokenizer.identity
    assert asked == [("openai-community/gpt2", "tokenizer.json")]
    size = tokenizer.backend.get_vocab_size(with_added_tokens=True)
    assert tokenizer.eos_id == size - 1
    assert tokenizer.decode(tokenizer.encode(TEXTS[0])) == TEXTS[0]
    (document,) = tokenizer.encode_documents([TEXTS[0]])
    assert document.ids[-1] == size - 1
    cut = tokenizer.encode_documents([TEXTS[0] * 20], limit=8)[0]
    assert cut.ids == [*tokenizer.encode(TEXTS[0] * 20)[:7], size - 1]
    assert size - 1 not in tokenizer.encode("<|endoftext|>")
    with pytest.raises(DataError, match=r"gpt2 declares no end token, .* below 256"):
        make(256)


def test_t5_is_fetched_once_and_special_words_in_text_stay_text(source, tmp_path, monkeypatch):
    asked = []
    there = tmp_path / "hub" / "tokenizer.json"
    there.parent.mkdir()
    backend = train_bpe(TEXTS, 320)
    backend.add_special_tokens([f"<extra_id_{n}>" for n in range(10)])
    backend.save(str(there))
    monkeypatch.setattr(hub, "download", lambda repo, name, revision, kind: asked.append((repo, name)) or there)
    for _ in range(2):
        tokenizer = make_tokenizer("t5", 320, source, SURVEY, tmp_path / "c", root=tmp_path, notify=print)
    assert asked == [("google-t5/t5-base", "tokenizer.json")]
    assert max(tokenizer.encode("<extra_id_0> text")) < 320


DEFINITIONS = tables("data/cases.yaml")["a_token_is_found_wherever_a_definition_has_it"]


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_token_is_found_wherever_a_definition_has_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "own.json").write_text(json.dumps(DEFINITIONS[name]))
    assert absent_reason(MaskToken("own.json", "[MASK]"), tmp_path, tmp_path) == ""
    reason = absent_reason(MaskToken("own.json", "<mask>"), tmp_path, tmp_path)
    assert reason.startswith("objective.mask_token: own.json has no token '<mask>'; leave the setting out")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": []}'])
def test_other_faults_of_a_tokenizer_are_reported_elsewhere(tmp_path: Path, content: str) -> None:
    (tmp_path / "own.json").write_text(content)
    assert absent_reason(MaskToken("own.json", "[MASK]"), tmp_path, tmp_path) == ""
    assert absent_reason(MaskToken("t5", "[MASK]"), tmp_path, tmp_path) == ""


def test_the_reader_masks_with_the_named_token() -> None:
    backend = train_bpe(["some text about masks and other words"], 280)
    backend.add_special_tokens(["[MASK]"])
    size = backend.get_vocab_size(with_added_tokens=True)
    tokenizer = Tokenizer(backend, size, origin="own.json")

    def reader(**objective: object) -> object:
        values = {
            "size": {"like": "quickstart", "vocab": size},
            "data": {"like": "quickstart", "tokenizer": "own.json"},
        }
        optim = {"lr": 1e-3, "warmup": 1, "steps": 9}
        return reader_of(cell_from({**values, "optim": optim, "objective": {"like": "mlm", **objective}}), tokenizer)

    made = reader(mask_token="[MASK]")
    assert (made.mask_id, made.ids) == (backend.token_to_id("[MASK]"), size)
    assert made.end_id == tokenizer.eos_id
    assert reader().mask_id == size - 1
    with pytest.raises(DataError, match=r"own\.json has no token '<mask>' below"):
        reader(mask_token="<mask>")


REAL = Path(__file__).parents[1] / "real"
WIKITEXT = (REAL / "wikitext-2/test.txt").read_bytes()
VOCAB = 400


@pytest.mark.parametrize("path", sorted((REAL / "llm_adapters").glob("*.json")), ids=lambda path: path.stem)
def test_records_of_llm_adapters_are_finetuning_records_in_every_form(path: Path, tmp_path: Path) -> None:
    raw = json.loads(path.read_bytes())
    found = list(read_records(path))
    assert [tuple(one) for one in found] == [(one["instruction"], one["input"], one["output"]) for one in raw]
    assert all(one.output.startswith("the correct answer is ") for one in found)
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps(one) + "\n" for one in raw))
    assert list(read_records(lines)) == found
    (tmp_path / path.stem).mkdir()
    (tmp_path / path.stem / "train.json").write_bytes(path.read_bytes())
    assert files("finetune.data", ".", "train", tmp_path) == [tmp_path / path.stem / "train.json"]


def written(folder: Path, form: str) -> Path:
    """Return a file with the lines of WikiText that have text, in a form that the corpora read."""
    import pyarrow
    from pyarrow import parquet

    lines = [line for line in WIKITEXT.decode().split("\n") if line.strip()]
    path = folder / f"text.{form}"
    json_lines = "".join(json.dumps({"text": line}) + "\n" for line in lines).encode()
    if form == "parquet":
        parquet.write_table(pyarrow.table({"text": lines}), path)
    else:
        path.write_bytes(gzip.compress(json_lines) if form.endswith("gz") else json_lines)
    return path


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "parquet"])
def test_wikitext_is_the_same_in_every_form_of_a_corpus(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, form)
    found = [document.text for document in Files(path.name, "text", tmp_path).everything()]
    assert found == [line for line in WIKITEXT.decode().split("\n") if line.strip()]
    with pytest.raises(DataError, match="content"):
        list(Files(path.name, "content", tmp_path).everything())
    renamed = path.rename(tmp_path / "text.jsonl.xz")
    with pytest.raises(DataError, match=r"does not end in \.txt, \.jsonl, \.jsonl\.gz, \.jsonl\.zst, \.parquet"):
        list(Files(renamed.name, "text", tmp_path).everything())


def test_wikitext_as_a_text_file(tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_bytes(WIKITEXT)
    (document,) = read_text("test.txt", tmp_path).documents
    assert document.text == WIKITEXT.decode()
    assert (document.words, document.size) == (len(WIKITEXT.split()), len(WIKITEXT))
    plain = joined(WIKITEXT.decode())
    assert "He had a guest-starring role on the television series The Bill in 2000. This was" in plain
    assert (
        'landed a role as "Craig" in the episode "Teddy\'s Story" of the television series The Long Firm; he' in plain
    )
    assert not any(mark in plain for mark in (" @-@ ", " ,", " .", " ;", " 's"))


def trainer(kind: str) -> Any:
    """Return a tokenizer of the `tokenizers` library, trained by its own implementation on WikiText."""
    from tokenizers import implementations

    lines = WIKITEXT.decode().split("\n")
    if kind == "gpt2":
        made = implementations.ByteLevelBPETokenizer()
        made.train_from_iterator(lines, VOCAB, special_tokens=["<|endoftext|>"], show_progress=False)
    elif kind == "t5":
        made = implementations.SentencePieceUnigramTokenizer()
        special = ["<pad>", "</s>", "<unk>"]
        made.train_from_iterator(lines, VOCAB, special_tokens=special, unk_token="<unk>", show_progress=False)
    elif kind == "llama":
        made = implementations.SentencePieceBPETokenizer()
        made.train_from_iterator(lines, VOCAB, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    else:
        made = implementations.BertWordPieceTokenizer()
        made.train_from_iterator(lines, VOCAB, show_progress=False)
    return made


def read(path: Path) -> Tokenizer:
    return make_tokenizer(str(path), VOCAB, None, None, path.parent, root=path.parent, notify=print)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "end"), [("gpt2", "<|endoftext|>"), ("t5", "</s>"), ("llama", "</s>"), ("bert", "[SEP]")]
)
def test_tokenizers_as_their_library_writes_them(tmp_path: Path, kind: str, end: str) -> None:
    made = trainer(kind)
    made.enable_truncation(5)
    made.enable_padding(length=5)
    made.save(str(tmp_path / "tokenizer.json"))
    found = read(tmp_path / "tokenizer.json")
    assert found.eos_id == made.token_to_id(end)
    text = "He had a guest role in the television series"
    made.no_truncation()
    made.no_padding()
    (document,) = found.encode_documents([text])
    assert document.ids == [*made.encode(text, add_special_tokens=False).ids, found.eos_id]
    assert found.decode(document.ids[:-1]).strip().lower() == text.lower()


def test_other_files_of_a_tokenizer_are_refused(tmp_path: Path) -> None:
    trainer("gpt2").save_model(str(tmp_path))
    for name in ("vocab.json", "merges.txt"):
        with pytest.raises(DataError, match=f"{name}: not a tokenizer.json of the `tokenizers` library"):
            read(tmp_path / name)
