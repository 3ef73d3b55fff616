"""What users ask for, as values: specs, qconfigs, rules, custom configs, targets."""
