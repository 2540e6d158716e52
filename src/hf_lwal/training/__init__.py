"""`LwALTrainer` and what it is made of: its callback, checkpoints, pushes, logs."""
