"""The playground, where a person asks a model through the fleet's routers and sees the answer beside its receipt."""
