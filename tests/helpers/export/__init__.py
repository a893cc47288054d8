"""What the tests of exported models share."""
