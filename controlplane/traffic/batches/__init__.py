"""Batches: files of requests that are sent while nothing else waits, by OpenAI's API."""
