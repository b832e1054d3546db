"""Shares: the wall and badges for readers without an account, by a token."""
