"""Devices that compute on a card, or as one would."""
