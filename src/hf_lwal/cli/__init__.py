"""The larger commands, a few small files each; ``hf_lwal.cli.main`` lists them."""
