"""Sign-in through the company's identity provider: OpenID Connect's authorization code flow with PKCE
(docs/sign-in.md).
`claims` turns claims into a role, pure; `provider` talks to the identity provider; `tokens` checks its signed tokens;
`identities` finds or creates the user; `views` are the pages.
"""
