"""Turn text into batches, the same ones in every run. numpy only: the trainer converts arrays to tensors.

1. corpora     `data.source` names a `Source`: records in a fixed order, which its parser turns into documents (id,
               text), in two disjoint splits (stdlib.py, files.py and hub.py implement the four sources)
2. survey      the source's fingerprint: identifies the text, independently of where it is stored and who reads it
3. tokenizer   text -> ids below the model's vocabulary size; trained here (`bpe`) or downloaded (`t5`, `gpt2`), or a
               tokenizer.json
4. encode      groups of records -> ids, in this process or in several; order is preserved
5. shards      the ids of every document, written once to a content-addressed cache that many jobs may build at once
6. rows        the cache as a table: `pack` cuts the concatenated documents, `pad` gives each document one row;
               a mixture has the rows of its corpora, in an order with their weights (loader.py)
7. loader      the batch of update `step` is a pure function of (seed, step), whatever the number of ranks
8. prepare     all of the above, in order, for the `Data` of a cell: the one function that a trainer calls

text_usage.py lists the text that a selection of cells needs.
"""
