"""Who may connect to a broker: TLS, SASL, and the principals of clients.

`listener_keys` finds the configuration of a listener, `listener_security` builds what it needs: `server_tls` (with
`key_stores`, `pkcs12`) the TLS contexts, `certificate_names` and `principal_mapping` the principals of certificates,
`sasl_session` the state of one connection until its client has authenticated, by `plain`, `scram` or `oauth_bearer`
(with `access_tokens`, and `token_keys`, which fetches the keys of an identity provider). `users` keeps the credentials
of SCRAM in the metadata store, `delegation_tokens` the tokens. `exposure` refuses listeners that would let everybody
in. `peer_dial` connects to other brokers, by the client's half of all this: `seglog.client.security`.

Who may do what: `permissions` (the table of what each API needs), `guard` (checks requests by it), `authorizer` and
`acls` (pure), `acl_store`.
"""
