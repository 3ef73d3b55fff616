"""What a call of the user's model may write to, taken down and put back."""
