"""What a backbone or a whole model costs: parameters, multiply-adds, operators, bytes."""
