"""Who may put what live: the rules of policies, the least plan, approvals, pools that change policy."""
