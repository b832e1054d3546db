POOL = "default"  # the pool of a standalone router
