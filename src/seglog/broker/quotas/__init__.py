"""Quotas of clients (KIP-13, 124, 219, 257, 546, 599): `client_quotas` has who may use how much, `request_quotas`
measures requests and holds their clients. A broker imports them when the cluster has a quota."""
