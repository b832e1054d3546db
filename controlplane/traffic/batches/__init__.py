"""Batches: files of requests sent while nothing else waits, by OpenAI's API."""
