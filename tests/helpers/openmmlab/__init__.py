"""What the tests of tools, data and trainings share."""
