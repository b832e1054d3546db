"""Batches: files of requests that are sent while nothing else waits, through OpenAI's API."""
