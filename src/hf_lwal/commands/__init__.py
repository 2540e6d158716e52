"""The larger commands, a few small files each; ``hf_lwal.cli`` lists them."""
