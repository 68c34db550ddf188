"""A cell's network: `build(model)` turns the data of `gpas_cli.spec.model` into an `nn.Module`."""
