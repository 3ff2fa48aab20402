"""What `aiokprod.compat` is made of: settings, errors and views in the form of other clients."""
