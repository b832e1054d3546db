"""Where the engines of a pool are, when something else starts them: a DNS name, a file or Pods of a cluster."""
