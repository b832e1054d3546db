"""Shares: the wall and badges for readers who have no account, by a token."""
