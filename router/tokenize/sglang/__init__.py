"""Prompts as SGLang renders them. SGLang shares vLLM's APIs and templates, but little of the processing in between."""
