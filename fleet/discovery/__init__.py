"""Discovers the engines of a pool that another system starts: by a DNS name, a file or Pods of a cluster."""
