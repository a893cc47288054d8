"""What a backbone costs: parameters, multiply-adds."""
