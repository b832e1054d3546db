"""Discovers the engines of a pool that something else starts: by a DNS name, a file or Pods of a cluster."""
