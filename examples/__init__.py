"""Programs that show how aiokprod is used; each is run by the tests."""
