"""Models of the custom resources; the CRD is generated from them."""
