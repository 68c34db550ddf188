"""The network of a cell: `llama.build(model)` makes an `nn.Module` from a `gpas_cli.spec.model.Model`."""
