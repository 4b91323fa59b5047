"""Logins by tokens: where tokens come from, and how long each is used. And logins by Kerberos tickets.

| module | what |
|---|---|
| `tokens` | a token, and the source that keeps one until it is renewed |
| `oidc` | tokens of a token endpoint (KIP-768) |
| `token_sources` | the source for the user's Kafka properties |
| `kerberos` | whether tickets of Kerberos can be used |
| `msk` | ``oauth_cb`` for Amazon MSK with IAM |

Whoever opens a connection asks for the token: the driver, each task's process, a command. Tokens are not sent from one
to another, since one could expire on the way.
"""
