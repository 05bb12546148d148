"""Faults that a broker for tests shows its clients: a layer between its connections and its dispatch.

`fault` says which requests meet which fault, `request_scope` what a request names, `error_answers` turns answers into
errors by their schemas, `fault_layer` carries faults out. A broker has the layer only if its `BrokerGround` makes
listeners with it.
"""
