"""The rules for going live: permissions, the least plan, approvals, pools that change policy."""
