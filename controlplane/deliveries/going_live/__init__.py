"""What may go live how: the rules of policies, the least that a plan shows, approvals, pools that change policy."""
