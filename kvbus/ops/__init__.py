"""What an operator looks at: logs. Holds no rule of the bus."""
