"""How often values come in generated rows, and how they are distributed, brought to the real rows."""
