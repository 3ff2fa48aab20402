"""Programs that show the use of aiokprod. The tests run each program."""
