"""Train a cell's network on its batches: `training.train` pretrains it, `finetune.finetune` finetunes it."""
