"""The verbs over a network, between a server and sites that check everything they receive."""
