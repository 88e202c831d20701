"""The training layer: what runs inside a rank. Imports torch, so nothing outside a rank imports it until it is used."""
