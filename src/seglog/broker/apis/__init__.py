"""Handlers of Kafka's APIs, by subject: classes that list their APIs in ``handlers()``, made by `seglog.broker.app`."""
