"""The models and their label table: what travels to the Hub with a checkpoint, flat, importing only itself."""
