"""Classes with the interfaces of other clients, which send through `aiokprod.Producer`."""
