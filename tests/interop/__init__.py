"""Tests beside a real Kafka; they need a JDK 17 and Maven. All others run without."""
