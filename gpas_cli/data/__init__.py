"""Text becomes batches, the same ones in every run. numpy only: the trainer turns arrays into tensors.

1. corpora     `data.source` names a `Source`: records in a fixed order, of which its parser makes documents (id, text),
               in two disjoint splits (stdlib.py, files.py and hub.py hold the four sources)
2. survey      the source's fingerprint: what the text is, whoever reads it and wherever it lies
3. tokenizer   text -> ids below the model's vocabulary; trained here (`bpe`) or fetched (`t5`, a tokenizer.json)
4. encode      groups of records -> ids, in this process or in several (workers.py, prefetch.py); the order is kept
5. shards      every document's ids, once, in a content-addressed cache that many jobs may build at the same time
6. rows        the cache seen as a table: `pack` cuts the joined documents, `pad` gives each document a row
7. loader      the batch of update `step` is a pure function of (seed, step) (order.py), whatever the number of ranks
8. prepare     all of the above, in order, for the `Data` of a cell: the one function a trainer calls

requirements.py says what a choice of cells needs, cache_listing.py what is there.
"""
