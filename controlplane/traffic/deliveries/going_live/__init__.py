"""The rules for going live: who may do what, the least plan, approvals, pools that change policy."""
