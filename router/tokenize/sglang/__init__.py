"""Prompts as SGLang renders them, which shares vLLM's APIs and templates, and little of what comes between."""
