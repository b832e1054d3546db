POOL = "default"  # the one of a standalone router
