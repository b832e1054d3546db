"""Prompts as rendered by SGLang, which shares vLLM's APIs and templates, but little of the processing in between."""
