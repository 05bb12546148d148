"""How a connection is secured: TLS, SASL, and where secrets come from.

`security_config` has the texts that a user gave; they may name secrets by `references`, which are resolved for each
new connection. `tls` and `sasl` use them; `scram`, `oauth_token`, `jaas`, `properties` and `pem` are their parts.
"""
