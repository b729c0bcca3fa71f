"""DeepSeek-V4: configuration, checkpoints, tokenizer, cache geometry and the forward pass in torch."""
