"""The specification of `refmoe.reference.deepseek`, one value at a time in exact rationals."""
