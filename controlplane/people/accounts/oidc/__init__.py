"""Sign-in with the company's identity: OpenID Connect's authorization code flow with PKCE (docs/sign-in.md).

`claims` turns claims into a role, pure; `provider` talks to the identity provider; `tokens` checks its signed tokens;
`identities` finds or makes the user; `views` are the pages.
"""
